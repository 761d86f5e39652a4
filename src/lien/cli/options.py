"""Commands and groups that take the global options at any place, as people type them."""

from __future__ import annotations

import os
from typing import Any

import click

from lien.cli.invocation import Invocation


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep a global option in the invocation; the one nearest to the end of the line wins."""
    invocation = context.ensure_object(Invocation)
    if parameter.name is not None and value not in {None, False}:
        setattr(invocation, parameter.name, value)
    if parameter.name == "no_color" and (value or os.environ.get("NO_COLOR")):
        invocation.no_color = True
        context.color = False


def global_options() -> list[click.Option]:
    """The options that every command has."""
    common: dict[str, Any] = {"expose_value": False, "callback": _remember}
    return [
        click.Option(
            ["--app"],
            metavar="MODULE:OBJECT",
            help="The lien.Lien object with the tasks.  [env: LIEN_APP; pyproject: tool.lien.app]",
            **common,
        ),
        click.Option(
            ["--url"],
            metavar="URL",
            help="The database instead of the app's.  [env: LIEN_URL; pyproject: tool.lien.url]",
            **common,
        ),
        click.Option(
            ["--schema"],
            metavar="NAME",
            help="The tables' schema (PostgreSQL) or prefix.  [env: LIEN_SCHEMA; pyproject: tool.lien.schema]",
            **common,
        ),
        click.Option(["--json"], is_flag=True, help="One JSON document on stdout.", **common),
        click.Option(["--no-color"], is_flag=True, help="No colors.  [env: NO_COLOR]", **common),
        click.Option(["-v", "--verbose"], is_flag=True, help="Tracebacks, and more talk.", **common),
    ]


class _Global(click.Command):
    """Adds the global options, and shows them in a section of their own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.common = global_options()
        self.params = [*self.params, *self.common]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, the global ones after them."""
        own = [p for p in self.get_params(ctx) if p not in self.common]
        for title, parameters in (("Options", own), ("Global options", self.common)):
            records = [r for p in parameters if (r := p.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Command(_Global):
    """A command with the global options."""


class Group(_Global, click.Group):
    """A group with the global options; its commands have them too. Without a command it shows its help."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("callback", self._nothing_said)
        super().__init__(*args, invoke_without_command=True, no_args_is_help=False, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    @staticmethod
    @click.pass_context
    def _nothing_said(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help(), err=True)
            context.exit(2)
