-- The first schema: live jobs, ended jobs, schedules, nodes, and a way to push from any language.
--
-- Why: live rows sit in one narrow table that stays small; what ended leaves it in the statement that ends
--   it. The CHECKs repeat the rules of runtime/model/jobs.py, so that no other client can break them.
-- While old code runs: there is none.
-- Locks: only what it makes itself.
-- Undo: drop schema tenure cascade;

set local lock_timeout = '2s';  -- fail and be run again, rather than queue everybody behind us

create domain tenure.kind as text check (octet_length(value) between 1 and 64);
create domain tenure.queue as text check (octet_length(value) between 1 and 48 and left(value, 1) <> '@');
create domain tenure.priority as smallint check (value between 0 and 9);
create domain tenure.count as integer check (value >= 0);
-- What every client can read: finite, and within the years that Python's datetime and RFC 3339 know.
create domain tenure.moment as timestamptz
    check (value >= '1970-01-01 00:00+00' and value < '9999-12-31 00:00+00');

-- What is queued or running. `history` holds the attempts that ended without being done; `texts`, by
-- their epochs, the messages, tracebacks, stacks and last output of these, which no list reads.
create table tenure.job (
    id uuid primary key,
    kind tenure.kind not null,
    queue tenure.queue not null default 'default',
    priority tenure.priority not null default 5,
    state text not null default 'queued' check (state in ('queued', 'running')),
    due tenure.moment not null default now(),
    attempt tenure.count not null default 0,
    epoch tenure.count not null default 0,
    failures tenure.count not null default 0,
    crashes tenure.count not null default 0,
    interruptions tenure.count not null default 0,
    unique_key text check (octet_length(unique_key) between 1 and 64),
    created timestamptz not null default now(),
    lease_until timestamptz,
    started timestamptz,
    node text,
    worker integer,
    pid integer,
    cancel boolean not null default false,
    payload jsonb default '{}',  -- null: it is large, and in tenure.payload
    progress jsonb,
    history jsonb check (jsonb_typeof(history) = 'array'),
    texts jsonb check (jsonb_typeof(texts) = 'object'),
    constraint job_lease check (
        case state
            when 'running' then num_nulls(lease_until, started, node, worker, pid) = 0
            else num_nonnulls(lease_until, started, node, worker, pid) = 0 and not cancel
        end
    )
) with (
    fillfactor = 85,  -- room on the page, so that a renewal touches no index
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000
);

-- The lanes, most urgent first, each in the order of claiming.
create index job_lane on tenure.job (priority, queue, due, id) where state = 'queued';
-- The few running rows. Renewing must not write an index, so the end of the lease is not its key; nor is the node:
-- each claim adds an entry, and equal keys cost three times as much.
create index job_running on tenure.job (id) where state = 'running';
-- The key comes first, because a schedule asks for its run whatever its kind.
create unique index job_unique on tenure.job (unique_key, kind) where unique_key is not null;

-- Done and cancelled jobs, a partition a day; what has no partition lands in the default one.
create table tenure.finished (
    id uuid not null,
    kind text not null,
    queue text not null,
    priority smallint not null,
    state text not null check (state in ('done', 'cancelled')),
    due timestamptz not null,
    attempt integer not null,
    epoch integer not null,
    failures integer not null,
    crashes integer not null,
    interruptions integer not null,
    unique_key text,
    created timestamptz not null,
    finished timestamptz not null,
    started timestamptz,
    node text,
    worker integer,
    pid integer,
    payload jsonb,
    result jsonb,
    progress jsonb,
    history jsonb,
    texts jsonb
) partition by range (finished);
create index finished_id on tenure.finished (id);
create index finished_large on tenure.finished (id) where payload is null;  -- these are deleted before their partition
create table tenure.finished_rest partition of tenure.finished default;

-- Jobs that nobody runs again unless told to. Nothing prunes them by itself.
create table tenure.dead (
    id uuid primary key,
    kind text not null,
    queue text not null,
    priority smallint not null,
    due timestamptz not null,
    attempt integer not null,
    epoch integer not null,
    failures integer not null,
    crashes integer not null,
    interruptions integer not null,
    unique_key text,
    created timestamptz not null,
    finished timestamptz not null,
    payload jsonb,
    progress jsonb,
    history jsonb,
    texts jsonb
);
create index dead_finished on tenure.dead (finished, id);

-- Large payloads, by the ids of their jobs: a job that ends moves from table to table, and would take a copy of its
-- payload along. A payload is here while its job is anywhere. That a job's own column is null says that it is here.
create table tenure.payload (
    id uuid primary key,
    payload jsonb not null
);

-- What may be large is compressed by LZ4 where the server has it: the default method takes ten times as long, most of
-- the time of a push or a result of a megabyte.
do $$
declare
    large record;
begin
    for large in
        select a.attrelid::regclass as of, a.attname
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p') and a.atttypid = 'jsonb'::regtype
    loop
        execute format('alter table %s alter column %I set compression lz4', large.of, large.attname);
    end loop;
exception
    when feature_not_supported then null;
end
$$;

create table tenure.schedule (
    name text primary key check (octet_length(name) between 1 and 55),  -- `schedule:NAME` is a unique key
    kind tenure.kind not null,
    payload jsonb not null,
    queue tenure.queue not null,
    priority tenure.priority not null,
    spec jsonb not null,  -- when it is due, as runtime/rules/schedule.py writes it
    overlap text not null check (overlap in ('skip', 'queue')),
    missed text not null check (missed in ('drop', 'catch_up')),
    declared boolean not null,
    paused boolean not null default false,
    due tenure.moment not null,
    last tenure.moment
);
create index schedule_due on tenure.schedule (due) where not paused;

-- Kicks whose runs are not made yet. A kick is a row of its own, so that no transaction that kicks ever waits for
-- another. The run of a kind has the unique key of the schedule that is declared with the kind: `schedule:KIND`.
create table tenure.kick (
    kind tenure.kind not null check (octet_length(kind) <= 55),
    id bigint generated always as identity,
    queue tenure.queue not null,
    priority tenure.priority not null,
    payload jsonb not null,
    primary key (kind, id)
);

-- `view` is what the node says of itself, runtime.model.jobs.NodeView.
create table tenure.node (
    id text primary key,
    started timestamptz not null,
    seen timestamptz not null,
    view jsonb not null
);

-- A history with one more attempt, at most `keep` of them: the first, and the latest ones.
create function tenure.remember(history jsonb, attempt jsonb, keep integer) returns jsonb
language sql immutable parallel safe as $$
    select case
        when jsonb_array_length(coalesce(history, '[]')) < keep then coalesce(history, '[]') || attempt
        else (history - 1) || attempt
    end
$$;

-- The texts of the attempts of a history, as `remember` leaves it, with the words of one more; null for none.
create function tenure.retell(texts jsonb, history jsonb, epoch integer, words jsonb, keep integer) returns jsonb
language sql immutable parallel safe as $$
    select case when words is null then kept else coalesce(kept, '{}') || jsonb_build_object(epoch, words) end
    from (
        select case
            when jsonb_array_length(coalesce(history, '[]')) < keep then texts
            else texts - (history -> 1 ->> 'epoch')
        end as kept
    ) as left_over
$$;

-- A UUID of version 7: milliseconds since 1970 in front, so that ids sort by time.
create function tenure.new_id() returns uuid
language sql volatile parallel safe as $$
    select encode(
        set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid())
            placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
            from 1 for 6
        ), 52, 1), 53, 1), 'hex')::uuid
$$;

-- Queue one job from SQL; its id, or null when the unique key is taken. A known id adds nothing.
create function tenure.push(
    kind text,
    payload jsonb default '{}',
    queue text default 'default',
    priority integer default 5,
    due timestamptz default null,
    unique_key text default null,
    id uuid default null
) returns uuid
language plpgsql volatile as $$
declare
    new_id constant uuid := coalesce(push.id, tenure.new_id());
    known boolean;
begin
    insert into tenure.job (id, kind, queue, priority, due, unique_key, payload)
    select new_id, push.kind, push.queue, push.priority, coalesce(push.due, now()), push.unique_key, push.payload
    where not exists (select from tenure.finished f where f.id = new_id)
        and not exists (select from tenure.dead d where d.id = new_id)
    on conflict do nothing;
    if found then
        perform pg_notify('tenure', case when push.due > now() then '@later' else push.queue end);
        return new_id;
    end if;
    select exists (select from tenure.job j where j.id = new_id)
        or exists (select from tenure.finished f where f.id = new_id)
        or exists (select from tenure.dead d where d.id = new_id)
    into known;
    return case when known then new_id end;
end
$$;

-- Let a kind run once, soon after this transaction commits; a kick carries nothing. What is not said is as the
-- schedule says that is declared with the kind, else the default.
create function tenure.kick(
    kind text, queue text default null, priority integer default null, payload jsonb default null
) returns void
language sql volatile as $$
    insert into tenure.kick (kind, queue, priority, payload)
    select
        kick.kind, coalesce(kick.queue, s.queue, 'default'), coalesce(kick.priority, s.priority, 5),
        coalesce(kick.payload, s.payload, '{}')
    from (select) as one
    left join tenure.schedule s on s.name = kick.kind and s.kind = kick.kind and s.declared;
    select pg_notify('tenure', '@kick');
$$;

-- What `tenure.fence` writes, and takes out again: no row stays. It is there for its trigger.
create unlogged table tenure.fenced (id uuid not null, epoch integer not null);

-- Refuse to go on unless a lease is current; while the transaction lasts it then stays current.
-- The lock is the weakest that holds a settlement, a release and a reclaim off, and lets a renewal pass. Each of
-- those locks the row "for update" before it writes, or deletes it: a mere update would pass this lock.
create function tenure.hold_lease() returns trigger
language plpgsql as $$
begin
    perform from tenure.job j
    where j.id = new.id and j.epoch = new.epoch and j.lease_until is not null
    for key share;
    if not found then
        raise exception 'the lease of job % at epoch % is lost', new.id, new.epoch using errcode = 'TEN01';
    end if;
    return null;
end
$$;

-- Deferred: it runs inside the COMMIT, so a transaction may last for hours and locks the job for no longer than
-- its commit takes, whenever it was fenced, and whoever commits it.
create constraint trigger lease_is_current after insert on tenure.fenced
deferrable initially deferred for each row execute function tenure.hold_lease();

-- Let the transaction under way commit only while a lease is current, and say in `application_name` whose it is.
-- Fails at once, with SQLSTATE TEN01, when the lease is gone already, and with TEN02 within a savepoint: whoever rolls
-- back to that takes the fence away, and nothing would say so.
create function tenure.fence(id uuid, epoch integer) returns void
language plpgsql volatile as $$
declare
    written tid;
    writer text;
begin
    if not exists (
        select from tenure.job j where j.id = fence.id and j.epoch = fence.epoch and j.lease_until is not null
    ) then
        raise exception 'the lease of job % at epoch % is lost', fence.id, fence.epoch using errcode = 'TEN01';
    end if;
    insert into tenure.fenced as f values (fence.id, fence.epoch) returning f.ctid, f.xmin::text into written, writer;
    if writer <> (pg_current_xact_id()::text::numeric % 4294967296)::text then
        raise exception 'a savepoint cannot be fenced, only its transaction: fence before it' using errcode = 'TEN02';
    end if;
    delete from tenure.fenced f where f.ctid = written;
    perform set_config('application_name', 'tenure job ' || fence.id || ' ' || fence.epoch, true);
end
$$;

-- Make the partition of one day (UTC). False when it is there, when rows of that day are already in the
-- default partition, or when the locks are not to be had at once. Attaching, unlike "create … partition
-- of", lets others go on writing to the parent.
create function tenure.add_day(day date) returns boolean
language plpgsql set lock_timeout = '200ms' set timezone = 'UTC' as $$
declare
    part constant text := 'finished_' || to_char(day, 'YYYYMMDD');
begin
    if to_regclass('tenure.' || part) is not null then
        return false;
    end if;
    execute format('create table tenure.%I (like tenure.finished including all)', part);
    execute format(
        'alter table tenure.finished attach partition tenure.%I for values from (%L) to (%L)',
        part, day::timestamptz, (day + 1)::timestamptz
    );
    return true;
exception
    when lock_not_available or check_violation or duplicate_table or unique_violation or deadlock_detected then
        return false;
end
$$;

-- Drop the oldest partition that ends at or before a day (UTC). False when there is none, or when the
-- locks are not to be had at once.
create function tenure.drop_day(before date) returns boolean
language plpgsql set lock_timeout = '200ms' set timezone = 'UTC' as $$
declare
    part name;
begin
    select c.relname into part
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'tenure.finished'::regclass
        and c.relname ~ '^finished_[0-9]{8}$'
        and c.relname < 'finished_' || to_char(before, 'YYYYMMDD')
    order by c.relname
    limit 1;
    if part is null then
        return false;
    end if;
    execute format('drop table tenure.%I', part);
    return true;
exception
    when lock_not_available or undefined_table or deadlock_detected then
        return false;
end
$$;

select tenure.add_day((now() at time zone 'UTC')::date + ahead) from generate_series(0, 2) as ahead;
