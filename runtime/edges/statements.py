"""Owns the SQL of the job store: each statement one constant, with what it does, holds, locks and needs.

`%(now)s` is null in production, where the database's own `now()` counts; a test's clock takes its place.
Every statement over several rows locks them in the order of their ids. "The fence" is the condition
`epoch = … and lease_until is not null`: a lease that is no longer current changes nothing. By the CHECK
`job_lease` only a running job has a lease; saying `state = 'running'` instead would let the planner find the
rows by job_running, whose dead entries it would walk, and not by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from runtime.model.jobs import Lease

SESSION = """
-- Set up a connection of our own.
-- Holds: times come back in UTC. A transaction pooler tracks this setting, too.
select set_config('timezone', 'UTC', false)
"""

PLANNER = """
-- Leave the planner one way, whatever the statistics say: through the lane index in its order, and from a
--   list of ids to their rows. For the session, or for the transaction when it is not ours alone.
select
    set_config('jit', 'off', %(local)s::bool),
    set_config('enable_seqscan', 'off', %(local)s::bool),
    set_config('enable_bitmapscan', 'off', %(local)s::bool),
    set_config('enable_sort', 'off', %(local)s::bool),
    set_config('enable_hashjoin', 'off', %(local)s::bool),
    set_config('enable_mergejoin', 'off', %(local)s::bool),
    set_config('plan_cache_mode', 'force_generic_plan', %(local)s::bool)
"""

LISTEN = """
-- Be told of new work, of due times and of cancels.
listen tenure
"""

# -- push

PUSH_NEW = """
-- Queue one new job whose id was made just now and that has no unique key.
-- Holds: a notification, of its queue if it is due now and else of '@later'. But commits that notify queue up behind
--   one lock of the whole server: so of the statements that are a transaction by themselves (`alone`), one at a time
--   notifies, and those beside it stay silent, as CAUGHT_UP says.
-- Locks: the new row. The bell, waiting for nobody.
-- Needs: an id that is not live.
insert into tenure.job (id, kind, queue, priority, due, created, payload)
values (
    %(id)s::uuid, %(kind)s::text, %(queue)s::text, %(priority)s::smallint,
    coalesce(
        %(due)s::timestamptz, coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(delay_s)s::float8)
    ),
    coalesce(%(now)s::timestamptz, now()), %(payload)s::jsonb
)
returning case
    when case
        when not %(alone)s::boolean then true
        when pg_try_advisory_xact_lock_shared(1952804469, 1) then pg_try_advisory_xact_lock(1952804469, 2)
        else true
    end
    then pg_notify('tenure', case when due <= coalesce(%(now)s::timestamptz, now()) then queue else '@later' end)
end
"""

PUSH = """
-- Queue new jobs; the ids that were added.
-- Holds: as PUSH_NEW. A known id, live or ended, adds nothing, and neither does a taken unique key. A large payload
--   goes into a table of its own, and stays there while its job moves.
-- Locks: as PUSH_NEW; waits for a concurrent push of the same id or unique key to end.
-- Needs: the primary keys and finished_id. "offset 0" keeps each check a probe of its index, where a join
--   would read a whole table as soon as the statistics are wrong.
with new as (
    select n.*
    from unnest(
        %(ids)s::uuid[], %(kinds)s::text[], %(queues)s::text[], %(priorities)s::smallint[],
        %(dues)s::timestamptz[], %(delays)s::float8[], %(uniques)s::text[], %(payloads)s::text[]
    ) with ordinality as n (id, kind, queue, priority, due, delay_s, unique_key, payload, number)
), added as (
    insert into tenure.job (id, kind, queue, priority, due, unique_key, created, payload)
    select
        id, kind, queue, priority,
        coalesce(due, coalesce(%(now)s::timestamptz, now()) + make_interval(secs => delay_s)),
        unique_key, coalesce(%(now)s::timestamptz, now()),
        case when octet_length(payload) < %(large)s::int then payload::jsonb end
    from new
    where not exists (select from tenure.job j where j.id = new.id offset 0)
        and not exists (select from tenure.finished f where f.id = new.id offset 0)
        and not exists (select from tenure.dead d where d.id = new.id offset 0)
    order by number
    on conflict do nothing
    returning id, queue, due
), apart as (
    insert into tenure.payload (id, payload)
    select id, payload::jsonb from new
    where octet_length(payload) >= %(large)s::int and id = any (array(select id from added))
    on conflict (id) do update set payload = excluded.payload  -- of a job that somebody has deleted by hand
), words as (
    select distinct case when due <= coalesce(%(now)s::timestamptz, now()) then queue else '@later' end as word
    from added
), bell as (
    select case
        when not %(alone)s::boolean then true
        when pg_try_advisory_xact_lock_shared(1952804469, 1) then pg_try_advisory_xact_lock(1952804469, 2)
        else true
    end as is_rung
)
select id::text, (select count(pg_notify('tenure', word)) from words, bell where is_rung) from added
"""

CAUGHT_UP = """
-- Whether the jobs of all pushes that stayed silent up to now can be seen.
-- Holds: a push that may stay silent holds the first lock of the bell, shared, until its job can be seen, and only
--   then asks for the second: it notifies if it gets it, and is silent because another one that notifies has it. So
--   after each notification there comes a time when nobody has the second and then nobody the first: and who looks
--   then has missed nothing.
-- Locks: the first lock of the bell for the moment; a push that meets it notifies.
select case
    when exists (
        select from pg_locks
        where locktype = 'advisory' and classid = 1952804469 and objid = 2 and objsubid = 2
            and database = (select oid from pg_database where datname = current_database())
    ) then false
    else pg_try_advisory_xact_lock(1952804469, 1)
end
"""

COPY = """
-- Queue new jobs that nobody can know yet: the fast path of PUSH, after which TELL is due.
-- Holds: an id that is live refuses them all; that one has ended is not looked for.
-- Locks: the new rows.
-- Needs: rows of text in this order.
copy tenure.job (id, kind, queue, priority, due, created, payload) from stdin
"""

COPY_LARGE = """
-- Put the large payloads, which are null in COPY, into their own table.
-- Locks: the new rows.
-- Needs: rows of text in this order.
copy tenure.payload (id, payload) from stdin
"""

TELL = """
-- Notify words, once the transaction commits.
select count(pg_notify('tenure', word)) from unnest(%(words)s::text[]) as told (word)
"""

KNOWN = """
-- Which of these ids are known, live or ended.
select id::text from unnest(%(ids)s::uuid[]) as asked (id)
where exists (select from tenure.job j where j.id = asked.id offset 0)
    or exists (select from tenure.finished f where f.id = asked.id offset 0)
    or exists (select from tenure.dead d where d.id = asked.id offset 0)
"""

HOLDER = """
-- The live job that has a unique key.
-- Needs: job_unique.
select id::text, true from tenure.job where unique_key = %(unique)s::text and kind = %(kind)s::text
"""

REPLACE = """
-- Give a queued job that has a unique key what a newer push of the key says; its id, and whether it was queued.
-- Holds: a running job is left alone. The attempts and the history stay.
-- Locks: that row, so it cannot be claimed meanwhile.
-- Needs: job_unique.
with it as (
    select id, state from tenure.job
    where unique_key = %(unique)s::text and kind = %(kind)s::text
    for update
), moved as (
    update tenure.job j set
        due = coalesce(
            %(due)s::timestamptz, coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(delay_s)s::float8)
        ),
        queue = %(queue)s::text,
        priority = %(priority)s::smallint,
        payload = %(payload)s::text::jsonb
    from it where j.id = it.id and it.state = 'queued'
    returning j.id, j.queue, j.due
), apart as (
    delete from tenure.payload large using moved where large.id = moved.id
), words as (
    select case when due <= coalesce(%(now)s::timestamptz, now()) then queue else '@later' end as word from moved
)
select it.id::text, it.state = 'queued', (select count(pg_notify('tenure', word)) from words) from it
"""

# -- claim and settle

LANES = """
-- The lanes with something due, most urgent first, after a given one: at most `most` are looked at.
-- Needs: job_lane, of which it reads the head of each lane and no more.
with recursive lane as (
    (
        select priority, queue, due from tenure.job
        where state = 'queued' and (priority, queue) > (%(priority)s::smallint, %(queue)s::text)
        order by priority, queue, due, id
        limit 1
    )
    union all
    select next.* from lane cross join lateral (
        select priority, queue, due from tenure.job
        where state = 'queued' and (priority, queue) > (lane.priority, lane.queue)
        order by priority, queue, due, id
        limit 1
    ) next
)
select priority, queue, due <= coalesce(%(now)s::timestamptz, now()) from lane limit %(most)s::int
"""

CLAIM = """
-- Lease due jobs to one worker, lane after lane, each from the given position.
-- Holds: a job has at most one lease. The epoch rises with each claim and never falls, so (id, epoch)
--   names this lease for ever, and every later write is fenced by it.
-- Locks: just the rows it returns; one that another worker is claiming is skipped, never waited for.
-- Needs: job_lane, read in order from the position, so the cost grows neither with the backlog nor with
--   the dead index entries before the position.
with picked as (
    select next.id
    from unnest(
        %(priorities)s::smallint[], %(queues)s::text[], %(dues)s::timestamptz[], %(ids)s::uuid[]
    ) as lane (priority, queue, due, id)
    cross join lateral (
        select job.id from tenure.job
        where job.state = 'queued'
            and job.priority = lane.priority
            and job.queue = lane.queue
            and (job.due, job.id) > (
                coalesce(lane.due, '-infinity'), coalesce(lane.id, '00000000-0000-0000-0000-000000000000')
            )
            and job.due <= coalesce(%(now)s::timestamptz, now())
            and job.kind = any (%(kinds)s::text[])
        order by job.priority, job.queue, job.due, job.id
        limit %(limit)s::int
        for update skip locked
    ) next
    limit %(limit)s::int
)
update tenure.job set
    state = 'running',
    attempt = attempt + 1,
    epoch = epoch + 1,
    lease_until = coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(lease_s)s::float8),
    started = coalesce(%(now)s::timestamptz, now()),
    node = %(node)s::text,
    worker = %(worker)s::int,
    pid = %(pid)s::int,
    progress = null
where id = any (array(select id from picked))
returning
    id::text, epoch, kind, queue, priority, due, attempt, failures, crashes,
    coalesce(payload, (select large.payload from tenure.payload large where large.id = job.id), 'null')::text
"""

DONE = """
-- Settle attempts that are plainly done: the hot path of SETTLE.
-- Holds: the fence. A done job leaves the live table in the statement that settles it, and its attempt
--   is told by the columns of its row, so no history is written. The end of a run that kicks may wait for is
--   told, whether or not any do: one that commits at this moment is not seen here.
-- Locks: the settled rows.
with told as (
    select * from unnest(%(ids)s::uuid[], %(epochs)s::int[], %(results)s::text[]) as t (id, epoch, result)
), gone as (
    delete from tenure.job j using told t
    where j.id = t.id and j.epoch = t.epoch and j.lease_until is not null
    returning j.*, t.result::jsonb as result
), kept as (
    insert into tenure.finished (
        id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, finished, started, node, worker, pid, payload, result, progress, history, texts
    )
    select
        id, kind, queue, priority, 'done', due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, coalesce(%(now)s::timestamptz, now()), started, node, worker, pid, payload, result, progress,
        history, texts
    from gone
)
select id::text, epoch, case when unique_key ^@ 'schedule:' then pg_notify('tenure', '@kick')::text end from gone
"""

SETTLE = """
-- Settle attempts, each the way it ended.
-- Holds: the fence. A job whose cancel was asked for becomes cancelled where queued is said. What ends
--   leaves the live table here and now; what goes back is told to its queue. What an attempt left in words is in
--   `texts`, by its epoch, and goes when the attempt goes from `history`.
-- Locks: the settled rows.
with told as (
    select * from unnest(
        %(ids)s::uuid[], %(epochs)s::int[], %(endings)s::text[], %(budgets)s::text[], %(states)s::text[],
        %(delays)s::float8[], %(results)s::text[], %(codes)s::text[], %(errors)s::text[],
        %(certificates)s::text[], %(texts)s::text[]
    ) as t (id, epoch, ending, budget, state, delay_s, result, code, error, certificate, texts)
), held as (
    select
        j.id, j.epoch, j.unique_key, t.delay_s,
        case when t.state = 'queued' and j.cancel then 'cancelled' else t.state end as state,
        case when t.state in ('done', 'cancelled') then t.result::jsonb end as result,
        j.failures + (t.budget is not distinct from 'failures')::int as failures,
        j.crashes + (t.budget is not distinct from 'crashes')::int as crashes,
        j.interruptions + (t.budget is not distinct from 'interruptions')::int as interruptions,
        case when t.state = 'done' then j.history else tenure.remember(j.history, jsonb_build_object(
            'attempt', j.attempt, 'epoch', j.epoch, 'node', j.node, 'worker', j.worker, 'pid', j.pid,
            'started', j.started, 'ended', coalesce(%(now)s::timestamptz, now()), 'ending', t.ending,
            'code', t.code, 'error', case when t.error is not null then jsonb_build_object('class', t.error) end,
            'certificate', t.certificate::jsonb
        ), %(keep)s::int) end as history,
        case when t.state = 'done' then j.texts
            else tenure.retell(j.texts, j.history, j.epoch, t.texts::jsonb, %(keep)s::int)
        end as texts
    from tenure.job j join told t on j.id = t.id and j.epoch = t.epoch
    where j.lease_until is not null
    order by j.id
    for update of j
), gone as (
    delete from tenure.job j using held h
    where j.id = h.id and h.state <> 'queued'
    returning
        j.id, j.kind, j.queue, j.priority, h.state, j.due, j.attempt, j.epoch, h.failures, h.crashes,
        h.interruptions, j.unique_key, j.created, j.started, j.node, j.worker, j.pid, j.payload, h.result,
        j.progress, h.history, h.texts
), finished as (
    insert into tenure.finished (
        id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, finished, started, node, worker, pid, payload, result, progress, history, texts
    )
    select
        id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, coalesce(%(now)s::timestamptz, now()), started, node, worker, pid, payload, result, progress,
        history, texts
    from gone where state <> 'dead'
), dead as (
    insert into tenure.dead (
        id, kind, queue, priority, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, finished, payload, progress, history, texts
    )
    select
        id, kind, queue, priority, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, coalesce(%(now)s::timestamptz, now()), payload, progress, history, texts
    from gone where state = 'dead'
), back as (
    update tenure.job j set
        state = 'queued',
        due = case
            when h.delay_s > 0 then coalesce(%(now)s::timestamptz, now()) + make_interval(secs => h.delay_s)
            else j.due  -- its old place in the lane, in front of what came after it
        end,
        failures = h.failures,
        crashes = h.crashes,
        interruptions = h.interruptions,
        history = h.history,
        texts = h.texts,
        lease_until = null, started = null, node = null, worker = null, pid = null
    from held h
    where j.id = h.id and h.state = 'queued'
    returning j.queue, j.due
), words as (
    select case when due <= coalesce(%(now)s::timestamptz, now()) then queue else '@later' end as word from back
    union
    select '@kick' from held where unique_key ^@ 'schedule:'
)
select id::text, epoch, (select count(pg_notify('tenure', word)) from words) from held
"""

# -- leases

RENEW = """
-- Let leases end later; those that are held, and whether their cancel was asked for.
-- Holds: the fence. No index is touched (a HOT update): the end of a lease is in none.
-- Locks: the renewed rows, so weakly that it waits for no commit that is fenced by one of them.
with held as (
    select j.id
    from tenure.job j
    join unnest(%(ids)s::uuid[], %(epochs)s::int[]) as t (id, epoch) on j.id = t.id and j.epoch = t.epoch
    where j.lease_until is not null
    order by j.id
    for no key update of j
)
update tenure.job j
set lease_until = coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(lease_s)s::float8)
from held where j.id = held.id
returning j.id::text, j.epoch, j.cancel
"""

GIVE_BACK = """
-- Queue claims again that were never started; one row each.
-- Holds: the fence. The attempt is taken back, the epoch stays, nothing is charged; the due time stays
--   too, and with it the place in the lane. One whose cancel was asked for becomes cancelled.
-- Locks: the rows given back.
with held as (
    select j.id, j.cancel, j.unique_key
    from tenure.job j
    join unnest(%(ids)s::uuid[], %(epochs)s::int[]) as t (id, epoch) on j.id = t.id and j.epoch = t.epoch
    where j.lease_until is not null
    order by j.id
    for update of j
), gone as (
    delete from tenure.job j using held where j.id = held.id and held.cancel returning j.*
), finished as (
    insert into tenure.finished (
        id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, finished, payload, progress, history, texts
    )
    select
        id, kind, queue, priority, 'cancelled', due, attempt - 1, epoch, failures, crashes, interruptions,
        unique_key, created, coalesce(%(now)s::timestamptz, now()), payload, progress, history, texts
    from gone
), back as (
    update tenure.job j set
        state = 'queued',
        attempt = j.attempt - 1,
        lease_until = null, started = null, node = null, worker = null, pid = null
    from held
    where j.id = held.id and not held.cancel
    returning j.queue
), words as (
    select queue::text as word from back
    union
    select '@kick' from held where unique_key ^@ 'schedule:'
)
select id, (select count(pg_notify('tenure', word)) from words) from held
"""

FENCE = """
-- Let the transaction under way commit only while a lease is current; SQLSTATE TEN01 when it is lost.
-- Holds: the lease is looked at inside the commit, by a deferred trigger, so nothing is between look and commit.
-- Locks: nothing now; the job's row during the commit, from settling and reclaiming, not from renewing.
-- Needs: that whoever ends a lease locks the row "for update" before, or deletes it. Then the weak lock waits for
--   one that is doing so, and fails at an isolation level whose snapshot shows the lease as it was.
select tenure.fence(%(id)s::uuid, %(epoch)s::int)
"""

HOLD = """
-- Look at the lease that fences this transaction now, and hold it until the end.
-- Locks: the job's row.
set constraints tenure.lease_is_current immediate
"""

END_SESSIONS = """
-- End the sessions that write for attempts which have been replaced; how many there were.
-- Holds: it touches sessions of this user in this database only, which every user may end.
select count(pg_terminate_backend(pid)) from pg_stat_activity
where application_name = any (%(names)s::text[])
    and datname = current_database() and usename = current_user and pid <> pg_backend_pid()
"""

HELD_BY = """
-- The leases of one worker.
-- Needs: job_running.
select id::text, epoch from tenure.job
where state = 'running' and node = %(node)s::text and worker = %(worker)s::int and pid = %(pid)s::int
order by id
"""

EXPIRED = """
-- Leases that have run out, the longest first.
-- Locks: those rows; one that is being settled or renewed is skipped.
-- Needs: job_running; the running rows are few.
select id::text, epoch from tenure.job
where state = 'running' and lease_until <= coalesce(%(now)s::timestamptz, now())
order by lease_until, id
limit %(limit)s::int
for update skip locked
"""

CANCELS = """
-- The running jobs of one node whose cancel was asked for.
-- Needs: job_running.
select id::text, epoch from tenure.job
where state = 'running' and node = %(node)s::text and cancel
order by id
"""

PROGRESS = """
-- Record how far attempts have come.
-- Holds: the fence. No index is touched.
-- Locks: the rows of these attempts, as RENEW does.
with held as (
    select j.id, t.progress
    from tenure.job j
    join unnest(%(ids)s::uuid[], %(epochs)s::int[], %(progress)s::text[]) as t (id, epoch, progress)
        on j.id = t.id and j.epoch = t.epoch
    where j.lease_until is not null
    order by j.id
    for no key update of j
)
update tenure.job j set progress = held.progress::jsonb from held where j.id = held.id
"""

# -- what people do and see

CANCEL = """
-- Take a queued job out, or ask for the end of a running one; the state that it has now.
-- Holds: a claim may commit while this waits for the row. The update then sees the old row first, on which
--   the table's rule must hold too: so it asks for what the row it sees allows, and again of the newer one.
-- Locks: the job.
with it as (
    select id, state from tenure.job where id = %(id)s::uuid for update
), gone as (
    delete from tenure.job j using it where j.id = it.id and it.state = 'queued' returning j.*
), finished as (
    insert into tenure.finished (
        id, kind, queue, priority, state, due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, finished, payload, progress, history, texts
    )
    select
        id, kind, queue, priority, 'cancelled', due, attempt, epoch, failures, crashes, interruptions, unique_key,
        created, coalesce(%(now)s::timestamptz, now()), payload, progress, history, texts
    from gone
), asked as (
    update tenure.job j set cancel = (j.lease_until is not null) from it where j.id = it.id and it.state = 'running' returning j.id
)
select
    case it.state when 'queued' then 'cancelled' else it.state end,
    (select count(pg_notify('tenure', '@cancel')) from asked)
from it
"""

RETRY = """
-- Queue a dead job again, from attempt 1 with whole budgets; one row when it was done.
-- Holds: the epoch goes on, so that no lease of its former life is current. The job is in one table at a
--   time; when its unique key is taken it stays where it is.
-- Locks: the dead job.
with it as (
    select * from tenure.dead where id = %(id)s::uuid for update
), back as (
    insert into tenure.job (id, kind, queue, priority, due, epoch, unique_key, created, payload, progress, history, texts)
    select
        id, kind, queue, priority, coalesce(%(now)s::timestamptz, now()), epoch, unique_key, created, payload,
        progress, history, texts
    from it
    on conflict do nothing
    returning id, queue
), gone as (
    delete from tenure.dead d using back where d.id = back.id
)
select id, (select count(pg_notify('tenure', queue)) from back) from back
"""

RETRY_ALL = """
-- RETRY for a batch of the dead jobs of a kind, after an id: the last one that was looked at, how many were, and
--   how many were queued.
-- Holds: as RETRY. What died after `before` is left, so that a job that dies at once does not go round for ever.
-- Locks: the dead jobs looked at; one that is locked is skipped.
-- Needs: the primary key, in its order.
with it as (
    select * from tenure.dead
    where kind = %(kind)s::text and finished <= %(before)s::timestamptz
        and id > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000')
    order by id
    limit %(limit)s::int
    for update skip locked
), back as (
    insert into tenure.job (id, kind, queue, priority, due, epoch, unique_key, created, payload, progress, history, texts)
    select
        id, kind, queue, priority, coalesce(%(now)s::timestamptz, now()), epoch, unique_key, created, payload,
        progress, history, texts
    from it order by id
    on conflict do nothing
    returning id, queue
), gone as (
    delete from tenure.dead d using back where d.id = back.id
), words as (
    select distinct queue as word from back
)
select
    max(id::text collate "C"), count(*), (select count(*) from back),
    (select count(pg_notify('tenure', word)) from words)
from it
"""

RESCHEDULE = """
-- Let a queued job be due at another time; one row when it is queued.
-- Locks: the job.
with moved as (
    update tenure.job set due = coalesce(
        %(due)s::timestamptz, coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(delay_s)s::float8)
    )
    where id = %(id)s::uuid and lease_until is null
    returning case when due <= coalesce(%(now)s::timestamptz, now()) then queue else '@later' end as word
)
select count(pg_notify('tenure', word)) from moved having count(*) > 0
"""

DELETE = """
-- Take a job out that is not running; a row when there was one.
-- Locks: the job.
with live as (
    delete from tenure.job where id = %(id)s::uuid and lease_until is null returning id
), finished as (
    delete from tenure.finished where id = %(id)s::uuid returning id
), dead as (
    delete from tenure.dead where id = %(id)s::uuid returning id
), payload as (
    delete from tenure.payload large
    using (select id from live union all select id from finished union all select id from dead) gone
    where large.id = gone.id
)
select from live union all select from finished union all select from dead
"""

STATUS = """
-- One job whole, wherever it is; its payload, which may be large, only when it is asked for.
with large as (
    select payload from tenure.payload where id = %(id)s::uuid
)
select
    id::text, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique_key, created,
    null::timestamptz, progress::text, history -> -1 ->> 'code', epoch, started, node, worker, pid,
    case when %(payload)s::boolean then coalesce(payload, (select large.payload from large))::text end,
    null, history::text, texts::text
from tenure.job where id = %(id)s::uuid
union all
select
    id::text, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique_key, created,
    finished, progress::text, history -> -1 ->> 'code', epoch, started, node, worker, pid,
    case when %(payload)s::boolean then coalesce(payload, (select large.payload from large))::text end,
    result::text, history::text, texts::text
from tenure.finished where id = %(id)s::uuid
union all
select
    id::text, kind, queue, priority, 'dead', due, attempt, failures, crashes, interruptions, unique_key, created,
    finished, progress::text, history -> -1 ->> 'code', epoch, null, null, null, null,
    case when %(payload)s::boolean then coalesce(payload, (select large.payload from large))::text end,
    null, history::text, texts::text
from tenure.dead where id = %(id)s::uuid
"""

JOBS = """
-- Jobs, newest first, without the words that their attempts left; a null filter lets everything through.
-- Needs: the primary keys and finished_id, read backwards.
with live as (
    select
        id, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique_key, created,
        null::timestamptz as finished, progress::text as progress, history -> -1 ->> 'code' as code
    from tenure.job
    where (%(state)s::text is null or state = %(state)s::text)
        and (%(kind)s::text is null or kind = %(kind)s::text)
        and (%(queue)s::text is null or queue = %(queue)s::text)
    order by id desc limit %(limit)s::int
), finished as (
    select
        id, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique_key, created,
        finished, progress::text, history -> -1 ->> 'code'
    from tenure.finished
    where (%(state)s::text is null or state = %(state)s::text)
        and (%(kind)s::text is null or kind = %(kind)s::text)
        and (%(queue)s::text is null or queue = %(queue)s::text)
    order by id desc limit %(limit)s::int
), dead as (
    select
        id, kind, queue, priority, 'dead', due, attempt, failures, crashes, interruptions, unique_key, created,
        finished, progress::text, history -> -1 ->> 'code'
    from tenure.dead
    where (%(state)s::text is null or %(state)s::text = 'dead')
        and (%(kind)s::text is null or kind = %(kind)s::text)
        and (%(queue)s::text is null or queue = %(queue)s::text)
    order by id desc limit %(limit)s::int
)
select
    id::text, kind, queue, priority, state, due, attempt, failures, crashes, interruptions, unique_key, created,
    finished, progress, code
from (select * from live union all select * from finished union all select * from dead) as every
order by every.id desc limit %(limit)s::int
"""

DEAD = """
-- Dead jobs, latest death first, with the last of their attempts, but without the words that it left.
-- Needs: dead_finished, read backwards.
select
    id::text, kind, queue, priority, 'dead', due, attempt, failures, crashes, interruptions, unique_key, created,
    finished, progress::text, history -> -1 ->> 'code', (history -> -1)::text
from tenure.dead
where %(kind)s::text is null or kind = %(kind)s::text
order by finished desc, dead.id desc limit %(limit)s::int
"""

COUNTS = """
-- How many jobs have ended in each way, without queue and kind; and how many of each queue and kind are live, and kicks.
-- Holds: it is one statement, so that a job that ends meanwhile is counted once, here or there.
select
    state, null as queue, null as kind, count(*) as ended, 0 as queued, 0 as running, 0 as kicked,
    null::timestamptz as oldest
from tenure.finished group by state
union all
select 'dead', null, null, count(*), 0, 0, 0, null from tenure.dead
union all
select
    'live', queue, kind, 0,
    count(*) filter (where state = 'queued'),
    count(*) filter (where state = 'running'),
    count(*) filter (where state = 'kicked'),
    min(due) filter (where state = 'queued' and due <= coalesce(%(now)s::timestamptz, now()))
from (
    select queue, kind, state, due from tenure.job union all select queue, kind, 'kicked', null from tenure.kick
) as live
group by queue, kind
"""

WAITING = """
-- Queues and kinds with due jobs, by the first due jobs of each lane; of these how many, and since when.
-- Needs: job_lane, of which it reads the head of each lane.
with recursive lane as (
    (
        select priority, queue, due from tenure.job
        where state = 'queued'
        order by priority, queue, due, id
        limit 1
    )
    union all
    select next.* from lane cross join lateral (
        select priority, queue, due from tenure.job
        where state = 'queued' and (priority, queue) > (lane.priority, lane.queue)
        order by priority, queue, due, id
        limit 1
    ) next
)
select first.queue, first.kind, count(*), min(first.due)
from lane cross join lateral (
    select queue, kind, due from tenure.job
    where state = 'queued' and priority = lane.priority and queue = lane.queue
        and due <= coalesce(%(now)s::timestamptz, now())
    order by priority, queue, due, id
    limit %(limit)s::int
) first
group by first.queue, first.kind
"""

PENDING = """
-- Whether any job of these kinds and queues is live or kicked.
select exists (
    select from tenure.job
    where kind = any (%(kinds)s::text[]) and (%(queues)s::text[] is null or queue = any (%(queues)s::text[]))
) or exists (
    select from tenure.kick
    where kind = any (%(kinds)s::text[]) and (%(queues)s::text[] is null or queue = any (%(queues)s::text[]))
)
"""

OUTLOOK = """
-- Whether a job is due, and in how many seconds the next job, the next tick and the next lease end come.
-- Needs: job_lane, of which it reads the head of each lane and the first job after now; job_running.
with recursive lane as (
    (
        select priority, queue, due from tenure.job
        where state = 'queued'
        order by priority, queue, due, id
        limit 1
    )
    union all
    select next.* from lane cross join lateral (
        select priority, queue, due from tenure.job
        where state = 'queued' and (priority, queue) > (lane.priority, lane.queue)
        order by priority, queue, due, id
        limit 1
    ) next
), asked as (
    select * from lane where %(queues)s::text[] is null or queue = any (%(queues)s::text[])
), later as (
    select next.due from asked cross join lateral (
        select due from tenure.job
        where state = 'queued' and priority = asked.priority and queue = asked.queue
            and due > coalesce(%(now)s::timestamptz, now())
        order by priority, queue, due, id
        limit 1
    ) next
)
select
    coalesce((select bool_or(due <= coalesce(%(now)s::timestamptz, now())) from asked), false),
    (select extract(epoch from min(due) - coalesce(%(now)s::timestamptz, now()))::float8 from later),
    (
        select extract(epoch from min(due) - coalesce(%(now)s::timestamptz, now()))::float8
        from tenure.schedule where not paused
    ),
    (
        select extract(epoch from min(lease_until) - coalesce(%(now)s::timestamptz, now()))::float8
        from tenure.job where state = 'running'
    ),
    exists (select from tenure.kick)
"""

# -- kicks

KICK = """
-- Kick kinds, once this transaction has committed.
-- Locks: nothing that anybody waits for: each kick is a row of its own.
select count(tenure.kick(kind, queue, priority, payload::jsonb))
from unnest(
    %(kinds)s::text[], %(queues)s::text[], %(priorities)s::int[], %(payloads)s::text[]
) as k (kind, queue, priority, payload)
"""

KICK_FENCED = """
-- Kick what attempts have kicked, in the transaction that is about to settle them.
-- Holds: the fence: what has lost its lease kicks nothing.
-- Locks: rows that are about to be settled, in the order of their ids, from the first on.
with held as (
    select j.id, j.epoch
    from tenure.job j
    join unnest(%(ids)s::uuid[], %(epochs)s::int[]) as t (id, epoch) on j.id = t.id and j.epoch = t.epoch
    where j.lease_until is not null
    order by j.id
    for update of j
)
select count(tenure.kick(k.kind, k.queue, k.priority, k.payload::jsonb))
from unnest(
    %(kickers)s::uuid[], %(kicker_epochs)s::int[],
    %(kinds)s::text[], %(queues)s::text[], %(priorities)s::int[], %(payloads)s::text[]
) as k (job, epoch, kind, queue, priority, payload)
where exists (select from held where held.id = k.job and held.epoch = k.epoch)
"""

START_KICKED = """
-- Make the runs of the kicks that are seen; how many kicks were taken out.
-- Holds: a kick is taken out only when a run begins after this statement's snapshot, which sees the kick. Where no
--   run is live in that snapshot, the one that is made here or, on a conflict, has been made meanwhile; where one
--   is queued in it, that one; where one is running in it, none: then the newest kick stays and stands for the
--   others. The unique key keeps two runs of a kind from being live.
-- Locks: the kicks; those that another such statement has are skipped. Then queued runs that are not due, in the
--   order of their ids, then the keys of the new runs, in the order of the kinds.
-- Needs: the primary key of kick, of which it reads the first and the last kicks of each kind; job_unique.
with recursive kicked as (
    (select kind::text from tenure.kick order by kind limit 1)
    union all
    select next.kind from kicked cross join lateral (
        select kind::text from tenure.kick where kind > kicked.kind order by kind limit 1
    ) next
), state as (
    select kicked.kind, run.id, run.due, run.lease_until is not null as running
    from kicked left join lateral (
        select id, due, lease_until from tenure.job
        where unique_key = 'schedule:' || kicked.kind and kind = kicked.kind
        offset 0
    ) run on true
), seen as (
    select state.*, kick.*
    from state cross join lateral (
        select id as kick, queue, priority, payload from tenure.kick
        where kind = state.kind
        order by kind, id desc
        limit %(limit)s::int
        for update skip locked
    ) kick
), latest as (
    select distinct on (kind) * from seen order by kind, kick desc
), gone as (
    delete from tenure.kick k using seen
    where k.kind = seen.kind and k.id = seen.kick
        and not (seen.running and seen.kick = (select kick from latest where latest.kind = seen.kind))
    returning k.kind
), moved as (
    update tenure.job set due = coalesce(%(now)s::timestamptz, now())
    where id = any (array(select id from latest where due > coalesce(%(now)s::timestamptz, now())))
        and lease_until is null
        and due > coalesce(%(now)s::timestamptz, now())
    returning queue
), made as (
    insert into tenure.job (id, kind, queue, priority, due, unique_key, created, payload)
    select
        tenure.new_id(), kind, queue, priority, coalesce(%(now)s::timestamptz, now()), 'schedule:' || kind,
        coalesce(%(now)s::timestamptz, now()), payload
    from latest
    where id is null and (select count(*) from moved) >= 0  -- makes it come after them
    order by kind
    on conflict do nothing
    returning queue
), words as (
    select queue::text as word from moved union select queue::text from made
)
select (select count(*) from gone), (select count(pg_notify('tenure', word)) from words)
"""

# -- schedules

SCHEDULE = """
-- Make a schedule, or change it; whether it is new.
-- Holds: the next due time stays, unless the rule is another and its first tick comes sooner.
insert into tenure.schedule as s (name, kind, payload, queue, priority, spec, overlap, missed, declared, due)
values (
    %(name)s, %(kind)s, %(payload)s::text::jsonb, %(queue)s, %(priority)s, %(spec)s::text::jsonb,
    %(overlap)s, %(missed)s, %(declared)s, coalesce(%(due)s::timestamptz, %(now)s::timestamptz, now())
)
on conflict (name) do update set
    kind = excluded.kind,
    payload = excluded.payload,
    queue = excluded.queue,
    priority = excluded.priority,
    spec = excluded.spec,
    overlap = excluded.overlap,
    missed = excluded.missed,
    declared = excluded.declared,
    due = case when s.spec = excluded.spec then s.due else least(s.due, excluded.due) end
returning xmax = 0
"""

UNSCHEDULE = """
-- Take a schedule out; one row when there was one.
delete from tenure.schedule where name = %(name)s::text returning name
"""

PAUSE = """
-- Pause a schedule, or end its pause; one row when there is one.
update tenure.schedule set paused = %(paused)s::boolean where name = %(name)s::text returning name
"""

SCHEDULES = """
-- All schedules.
-- Needs: job_unique, whose first column is the key.
select
    name, kind, spec::text, payload::text, queue, priority, overlap, missed, declared, paused, due, last,
    exists (select from tenure.job where unique_key = 'schedule:' || s.name offset 0)
from tenure.schedule s order by name collate "C"
"""

OVERDUE = """
-- Schedules that are due, the longest overdue first.
-- Needs: schedule_due; job_unique.
select
    name, kind, spec::text, payload::text, queue, priority, overlap, missed, declared, paused, due, last,
    exists (select from tenure.job where unique_key = 'schedule:' || s.name offset 0)
from tenure.schedule s
where due <= coalesce(%(now)s::timestamptz, now()) and not paused
order by due, name collate "C"
limit %(limit)s::int
"""

ADVANCE = """
-- Let a schedule be due at another time; one row when it was due at the time given.
-- Holds: of any number of schedulers that saw it due, one moves it.
-- Locks: that row, until the job of the tick is pushed in the same transaction.
update tenure.schedule
set due = %(following)s::timestamptz,
    last = coalesce(%(ran)s::timestamptz, last)
where name = %(name)s::text and due = %(due)s::timestamptz and not paused
returning name
"""

NOW = """
-- The store's time.
select coalesce(%(now)s::timestamptz, now())
"""

# -- nodes

REPORT = """
-- Record what a node looks like; when it was first seen stays.
insert into tenure.node (id, started, seen, view)
values (
    %(id)s, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now()), %(view)s::text::jsonb
)
on conflict (id) do update set seen = excluded.seen, view = excluded.view
"""

FORGET = """
-- Take a node out.
delete from tenure.node where id = %(id)s::text
"""

NODES = """
-- All nodes.
select started, seen, view::text from tenure.node order by id collate "C"
"""

# -- upkeep

PRUNE_NODES = """
-- Take out nodes that have not reported for a while.
delete from tenure.node where seen < coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(nodes_s)s::float8)
"""

ADD_DAYS = """
-- Make the partitions of today and the next two days, where they are missing.
select tenure.add_day((coalesce(%(now)s::timestamptz, now()) at time zone 'UTC')::date + ahead)
from generate_series(0, 2) as ahead
"""

DROP_DAY = """
-- Drop the oldest partition that ended before the retention; whether there was one to be had.
select tenure.drop_day(
    ((coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(finished_s)s::float8)) at time zone 'UTC')::date
)
"""

PRUNE_LARGE = """
-- Delete a batch of jobs that ended before the retention and have large payloads, and these; a row for each.
-- Holds: what is dropped with its partition, or deleted without a look, leaves no payload behind.
-- Locks: those rows; one that is locked is skipped.
-- Needs: finished_large and finished_id.
with gone as (
    delete from tenure.finished
    where id = any (array(
            select id from tenure.finished
            where payload is null
                and finished < date_trunc(
                    'day', coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(finished_s)s::float8), 'UTC'
                )
            limit %(limit)s::int
            for update skip locked
        ))
    returning id
), payloads as (
    delete from tenure.payload where id = any (array(select id from gone))
)
select from gone
"""

PRUNE_REST = """
-- Delete a batch of what ended before the retention from the default partition.
-- Locks: those rows; one that is locked is skipped.
delete from tenure.finished_rest where ctid = any (array(
    select ctid from tenure.finished_rest
    where finished < date_trunc(
        'day', coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(finished_s)s::float8), 'UTC'
    )
    limit %(limit)s::int
    for update skip locked
))
"""


# -- work tables: names in braces are put in by `worktables.py`, as identifiers

CLAIM_ROWS = """
-- Claim due rows: count a try, and let each be due again after the delay of that try.
-- Holds: a row goes to one claim; nothing that is done with it later is undone by this one's failure. A count that is
--   null or negative is one of no tries, so the due time never becomes null here.
-- Locks: just the rows it returns, until the end of this transaction; one that somebody holds is skipped.
-- Needs: an index on the due column.
with picked as (
    select {key} as key, {due} as was_due, greatest({attempts}, 0) as tries from {table}
    where {due} <= coalesce(%(now)s::timestamptz, now())
        and greatest({attempts}, 0) < %(max_attempts)s::int and {where}
    order by {due}
    limit %(limit)s::int
    for update skip locked
), claimed as (
    update {table} as t set
        {attempts} = picked.tries + 1,
        {version} = coalesce(t.{version}, 0) + 1,
        {due} = coalesce(%(now)s::timestamptz, now())
            + make_interval(secs => (%(delays)s::float8[])[picked.tries + 1])
    from picked where t.{key} = picked.key
    returning t.*
)
select claimed.* from claimed join picked on picked.key = claimed.{key} order by picked.was_due, picked.key
"""

WRITE_ROW = """
-- Change a row of the version that is expected, or that one of `ours` has written; its new version, and the
--   subtransaction that has written it, null for none.
-- Holds: what was written within a savepoint is expected if it is still there, and not if that was rolled back, also
--   when somebody else has written the same version since.
-- Locks: that row.
update {table} set {version} = {version} + 1{assignments}
where {key} = %(key)s and ({version} = %(version)s or xmin::text = any (%(ours)s::text[]))
returning {version}, nullif(xmin::text, (pg_current_xact_id()::text::numeric %% 4294967296)::text)
"""

REMOVE_ROW = """
-- Take a row out, expected as by WRITE_ROW; its version.
-- Locks: that row.
delete from {table}
where {key} = %(key)s and ({version} = %(version)s or xmin::text = any (%(ours)s::text[]))
returning {version}
"""

STUCK_ROWS = """
-- Rows that no claim takes any more and that are not done, the longest due first.
select {key}::text, {attempts}, {version}, {due} from {table}
where {due} <= now() and {attempts} >= %(max_attempts)s::int
order by {due} limit %(limit)s::int
"""

REQUEUE_STUCK = """
-- Let all stuck rows be due now, with all their attempts; how many.
-- Locks: those rows.
update {table} set {due} = now(), {attempts} = 0, {version} = {version} + 1
where {due} <= now() and {attempts} >= %(max_attempts)s::int
"""

REQUEUE_ROW = """
-- Let a row be due now, with all its attempts, whatever it was.
-- Locks: that row.
update {table} set {due} = now(), {attempts} = 0, {version} = {version} + 1 where {key} = %(key)s
"""

COLUMNS = """
-- The columns of a table: name, type, whether not null, default.
select a.attname, format_type(a.atttypid, null), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = to_regclass(%(table)s) and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

INDEXES = """
-- The first columns of a table's usable indexes, and whether each alone is unique.
select a.attname, i.indisunique and i.indnkeyatts = 1 and i.indpred is null
from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
where i.indrelid = to_regclass(%(table)s) and i.indisvalid
"""


def session_name(lease: Lease) -> str:
    """The `application_name` of a session that writes for an attempt; `tenure.fence` sets the same."""
    return f"tenure job {lease.id} {lease.epoch}"


def array(items: Iterable[str | float | datetime | None]) -> str:
    """The text of an array parameter, which the statement casts: psycopg's own is slow for long ones."""
    return "{" + ",".join(map(_item, items)) + "}"


def _item(item: str | float | datetime | None) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, str):
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(item)
