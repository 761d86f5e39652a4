-- Every change of every row, in the order in which it happened to that row, with who made it. The triggers run inside
-- the transaction that they watch, so what was rolled back leaves nothing here either.
CREATE TABLE chaos_shadow (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    who text NOT NULL,
    source text NOT NULL,
    op text NOT NULL,
    job_id bigint NOT NULL,
    old json,
    new json
);
CREATE TABLE chaos_effect (job_id bigint, attempt integer, fence bigint, mark text, who text);
CREATE TABLE chaos_order (mark text PRIMARY KEY);

CREATE FUNCTION chaos_us(moment timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$SELECT (extract(epoch FROM moment) * 1000000)::bigint$$;

CREATE FUNCTION chaos_job(r lien.lien_job) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        r.state, replace(r.claim_token::text, '-', ''), r.fence, r.attempt, r.failures, r.max_failures, r.lost,
        r.max_lost, r.interrupted, r.max_interrupted, r.cancel_requested, r.reason, public.chaos_us(r.available_at),
        public.chaos_us(r.expires_at), public.chaos_us(r.claimed_at), public.chaos_us(r.lease_expires_at),
        r.claimed_by, r.queue, r.unique_key, r.origin, r.args ->> 'mark'
    )
$$;

CREATE FUNCTION chaos_watch_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        public.chaos_us(clock_timestamp()), current_setting('application_name'), 'job', left(TG_OP, 1),
        CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END,
        CASE WHEN TG_OP <> 'INSERT' THEN public.chaos_job(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN public.chaos_job(NEW) END
    );
    RETURN NULL;
END
$$;

CREATE FUNCTION chaos_attempt(r lien.lien_attempt) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        r.attempt, r.outcome, r.reason, replace(r.claim_token::text, '-', ''), r.fence, r.worker,
        public.chaos_us(r.started_at), public.chaos_us(r.ended_at)
    )
$$;

CREATE FUNCTION chaos_watch_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    r lien.lien_attempt;
BEGIN
    IF TG_OP = 'DELETE' THEN r := OLD; ELSE r := NEW; END IF;
    INSERT INTO public.chaos_shadow (at, who, source, op, job_id, new) VALUES (
        public.chaos_us(clock_timestamp()), current_setting('application_name'), 'attempt', left(TG_OP, 1), r.job_id,
        public.chaos_attempt(r)
    );
    RETURN NULL;
END
$$;

CREATE FUNCTION chaos_ending(r lien.lien_history) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        r.state, r.reason, r.fence, r.attempt, r.failures, r.lost, r.interrupted, public.chaos_us(r.finished_at),
        r.result ->> 'mark'
    )
$$;

CREATE FUNCTION chaos_watch_history() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    r lien.lien_history;
BEGIN
    IF TG_OP = 'DELETE' THEN r := OLD; ELSE r := NEW; END IF;
    INSERT INTO public.chaos_shadow (at, who, source, op, job_id, new) VALUES (
        public.chaos_us(clock_timestamp()), current_setting('application_name'), 'history', left(TG_OP, 1), r.id,
        public.chaos_ending(r)
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos_job AFTER INSERT OR UPDATE OR DELETE ON lien.lien_job
    FOR EACH ROW EXECUTE FUNCTION chaos_watch_job();
CREATE TRIGGER chaos_attempt AFTER INSERT OR UPDATE OR DELETE ON lien.lien_attempt
    FOR EACH ROW EXECUTE FUNCTION chaos_watch_attempt();
CREATE TRIGGER chaos_history AFTER INSERT OR UPDATE OR DELETE ON lien.lien_history
    FOR EACH ROW EXECUTE FUNCTION chaos_watch_history();
