//! Upstream's three debug endpoints (apf.md 7.3, and row 19 of 9): what waits and runs, as text in columns.
//!
//! They answer about the platform's levels, or about one workspace (`?workspace=`), or about all (`*`, with one more
//! column, and without queues that are empty). Rows are sorted. The gate is looked at one level at a time: numbers of
//! two rows may be a moment apart. An answer ends at [`TEXT_MAX`], and says so in its last line.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use apiserver_api::{ClusterName, Reason, RequestInfo, Status};
use fairness::{
    gate::{LevelDump, Place},
    upstream::QueueLoad,
};
use http::Uri;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{core::Core, index::Lookup, inflight::Entry, route::rest, worker::Worker};

const PREFIX: &str = "/debug/api_priority_and_fairness/";
const LEVELS: [&str; 10] = [
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];
const QUEUES: [&str; 9] = [
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];
/// The fifth is upstream's spelling.
const REQUESTS: [&str; 10] = [
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];
const DETAILS: [&str; 8] =
    ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];
/// Go's zero time, which upstream shows for what has not been started.
const NOT_STARTED: &str = "0001-01-01T00:00:00Z";

/// Bytes of an answer's cells, and of what pads them.
const TEXT_MAX: usize = 4 << 20;
/// Wider cells stand out of their column: one long name does not fill every row with blanks.
const WIDTH_MAX: usize = 200;

/// More rows of queues than an answer has room for: each of their columns is at least [`WIDTH_MIN`] wide.
const ROWS_MAX: usize = TEXT_MAX / (WIDTH_MIN * QUEUES.len());
const WIDTH_MIN: usize = 8;

type Row = Vec<String>;

/// The answer for a path below `/debug/api_priority_and_fairness/`; `None` for any other.
///
/// # Errors
/// 404 for a workspace that nobody knows, and when fairness is off.
pub(crate) fn answer(core: &Core, workers: &[Arc<Worker>], uri: &Uri) -> Option<Result<String, Status>> {
    let what = uri.path().strip_prefix(PREFIX)?;
    let (head, rows): (Row, fn(&View<'_>) -> Vec<Row>) = match what {
        "dump_priority_levels" => (row(&LEVELS), level_rows),
        "dump_queues" => (row(&QUEUES), queue_rows),
        "dump_requests" => (row(&REQUESTS), request_rows),
        _ => return None,
    };
    let query: BTreeMap<_, _> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
    let details = what == "dump_requests" && query.get("includeRequestDetails").is_some_and(|v| !v.is_empty());
    let asked = query.get("workspace").map(|v| &**v);
    Some(places(core, asked).map(|places| {
        let all = asked == Some("*");
        let mut head = head;
        head.extend(details.then(|| row(&DETAILS)).into_iter().flatten());
        head.extend(all.then(|| "Workspace".to_owned()));
        let requests: Vec<Entry> = workers.iter().flat_map(|w| w.requests.snapshot()).collect();
        let mut open: HashMap<_, Vec<&Entry>> = HashMap::new();
        for entry in &requests {
            open.entry((entry.shard, entry.workspace.as_ref())).or_default().push(entry);
        }
        let mut table = Table::new(head);
        for (shard, workspace) in places {
            let own = open.get(&(shard, workspace.as_ref())).map_or(&[][..], Vec::as_slice);
            let Some(view) = View::new(core, own, shard, workspace.as_ref(), Shown { details, all }) else { continue };
            let name = workspace.as_ref().map_or("", |name| name.as_str());
            for mut row in rows(&view) {
                row.extend(all.then(|| name.to_owned()));
                table.push(row);
            }
            if table.is_cut_off {
                break;
            }
        }
        table.text()
    }))
}

/// Shards and workspaces that are asked about.
fn places(core: &Core, asked: Option<&str>) -> Result<Vec<(usize, Option<ClusterName>)>, Status> {
    if core.fairness.is_none() {
        return Err(Status::new(Reason::NotFound, "fairness is off: there are no priority levels"));
    }
    match asked {
        None | Some("") => Ok(vec![(core.shards.platform(), None)]),
        Some("*") => {
            let gates = core.shards.iter().filter_map(|(n, s)| Some((n, s.gate.as_ref()?)));
            let workspaces = gates.flat_map(|(n, gate)| gate.workspaces().into_iter().map(move |w| (n, Some(w))));
            Ok([(core.shards.platform(), None)].into_iter().chain(workspaces).collect())
        }
        Some(path) => match core.index.lookup(path) {
            Lookup::Found { name, shard } => Ok(vec![(shard, Some(name))]),
            _ => Err(Status::new(Reason::NotFound, format!("no such workspace: {path}"))),
        },
    }
}

/// What was asked for.
#[derive(Clone, Copy)]
struct Shown {
    /// What a request asks for, too.
    details: bool,
    /// All workspaces: empty queues are left out.
    all: bool,
}

/// One workspace as it stands.
struct View<'a> {
    levels: Vec<LevelDump>,
    /// Sorted as they are shown.
    requests: Vec<(&'a str, Place, &'a Entry)>,
    /// How many of them run, by level and queue.
    running: BTreeMap<(&'a str, Option<u32>), u64>,
    shown: Shown,
    /// The wall clock, and the gateway's at the same moment.
    now: (OffsetDateTime, u64),
}

impl<'a> View<'a> {
    fn new(
        core: &Core,
        requests: &[&'a Entry],
        shard: usize,
        workspace: Option<&ClusterName>,
        shown: Shown,
    ) -> Option<Self> {
        let gate = core.shards.get(shard)?.gate.as_ref()?;
        let mut levels = gate.dump(workspace);
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        let mut requests: Vec<_> = requests
            .iter()
            .map(|&entry| {
                let level = entry.rules.profile.levels().get(usize::from(entry.class.level));
                let place = entry.id.and_then(|id| gate.place(id)).unwrap_or_default();
                (level.map_or("", |level| &*level.name), place, entry)
            })
            .collect();
        let order = |position: Option<u32>| position.map_or(u64::MAX, u64::from);
        requests.sort_by_key(|(level, place, entry)| {
            (*level, place.queue, order(place.position), entry.arrived_ns, entry.started_ns)
        });
        let mut running = BTreeMap::new();
        for (level, place, _) in requests.iter().filter(|(.., entry)| entry.started_ns.is_some()) {
            *running.entry((*level, place.queue)).or_default() += 1;
        }
        Some(Self { levels, requests, running, shown, now: core.clock.wall() })
    }

    /// Running requests of a level.
    fn running(&self, level: &str) -> u64 {
        self.running.iter().filter(|((l, _), _)| *l == level).map(|(_, count)| count).sum()
    }

    /// A moment of the gateway's clock.
    fn time(&self, ns: u64) -> String {
        let (wall, now) = self.now;
        let ago = time::Duration::nanoseconds(i64::try_from(now.saturating_sub(ns)).unwrap_or(i64::MAX));
        wall.checked_sub(ago).and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
    }
}

fn level_rows(view: &View<'_>) -> Vec<Row> {
    let level = |level: &LevelDump| {
        let executing = level.executing.unwrap_or_else(|| view.running(&level.name));
        let active = level.queues.iter().filter(|(_, queue)| queue.waiting > 0).count();
        let idle = level.waiting + executing == 0;
        let counts = [level.waiting, executing, level.dispatched, level.rejected, level.timed_out, level.cancelled];
        let mut row = vec![level.name.to_string(), active.to_string(), idle.to_string(), level.quiescing.to_string()];
        row.extend(counts.map(|count| count.to_string()));
        row
    };
    view.levels.iter().map(level).collect()
}

fn queue_rows(view: &View<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for level in &view.levels {
        let mut queues: BTreeMap<u32, QueueLoad> = level.queues.iter().copied().collect();
        let running = |index| view.running.get(&(&*level.name, Some(index))).copied().unwrap_or_default();
        for ((_, index), _) in view.running.iter().filter(|((name, _), _)| **name == *level.name) {
            queues.entry(index.unwrap_or(u32::MAX)).or_default();
        }
        let row = |(index, queue): (u32, QueueLoad)| {
            let executing = queue.executing.unwrap_or_else(|| running(index));
            queue_row(level, index, &queue, executing, view.shown.all)
        };
        let room = ROWS_MAX.saturating_sub(rows.len());
        if view.shown.all {
            rows.extend(queues.into_iter().filter(|(index, _)| *index < level.queue_count).filter_map(row).take(room));
        } else {
            let all = (0..level.queue_count).map(|at| (at, queues.get(&at).copied().unwrap_or_default()));
            rows.extend(all.filter_map(row).take(room));
        }
    }
    rows
}

/// `None` for a queue in which there is nothing, where those are left out.
fn queue_row(level: &LevelDump, index: u32, queue: &QueueLoad, executing: u64, skip_empty: bool) -> Option<Row> {
    if skip_empty && queue.waiting + executing + queue.seats_in_use == 0 {
        return None;
    }
    Some(vec![
        level.name.to_string(),
        index.to_string(),
        queue.waiting.to_string(),
        executing.to_string(),
        queue.seats_in_use.to_string(),
        seat_seconds(queue.next_dispatch_r),
        queue.initial_seats.to_string(),
        queue.max_seats.to_string(),
        seat_seconds(queue.total_work),
    ])
}

fn request_rows(view: &View<'_>) -> Vec<Row> {
    view.requests.iter().map(|(level, place, entry)| request_row(view, level, *place, entry)).collect()
}

fn request_row(view: &View<'_>, level: &str, place: Place, entry: &Entry) -> Row {
    let number = |n: Option<u32>| n.map_or("-1".to_owned(), |n| n.to_string());
    let path = rest(&entry.uri, entry.rest_at);
    let query = entry.uri.query().unwrap_or_default();
    let user = &entry.identity.user;
    let (profile, cost) = (&entry.rules.profile, entry.cost);
    let schema = profile.flow_schemas().get(usize::from(entry.class.flow_schema)).map_or("", |schema| &schema.name);
    // It was parsed on its way in; what cannot be parsed got no further.
    let info = RequestInfo::parse(entry.method.as_str(), path, query);
    let workspace = entry.workspace.as_ref().map_or("", |name| name.as_str());
    let flow = info.as_ref().map_or_else(|_| String::new(), |i| profile.distinguisher(workspace, user, i, entry.class));
    let mut row = vec![
        level.to_owned(),
        schema.to_owned(),
        number(place.queue),
        number(place.position),
        flow,
        view.time(entry.arrived_ns),
        cost.initial_seats.to_string(),
        cost.final_seats.to_string(),
        go_duration(cost.additional_latency.as_nanos()),
        entry.started_ns.map_or_else(|| NOT_STARTED.to_owned(), |at| view.time(at)),
    ];
    if let (true, Ok(info)) = (view.shown.details, &info) {
        let version = match &*info.api_group {
            "" => info.api_version.to_string(),
            group => format!("{group}/{}", info.api_version),
        };
        let texts = [&*user.name, info.verb.as_str(), &info.path, &info.namespace, &info.name];
        row.extend(texts.map(str::to_owned));
        row.extend([version, info.resource.to_string(), info.subresource.to_string()]);
    }
    row
}

fn row(cells: &[&str]) -> Row {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// `12.00300000ss`: the unit is 1e-8 seat-seconds.
fn seat_seconds(units: u64) -> String {
    format!("{}.{:08}ss", units / 100_000_000, units % 100_000_000)
}

/// As Go prints a duration: `0s`, `5ms`, `12.5ms`, `1.5s`.
fn go_duration(ns: u128) -> String {
    let (unit, name) = match ns {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let digits = format!("{:09}", ns % unit * (1_000_000_000 / unit));
    let fraction = digits.trim_end_matches('0');
    let minutes = if unit == 1_000_000_000 { ns / unit / 60 } else { 0 };
    let whole = ns / unit - minutes * 60;
    let minutes = if minutes > 0 { format!("{minutes}m") } else { String::new() };
    match fraction {
        "" => format!("{minutes}{whole}{name}"),
        _ => format!("{minutes}{whole}.{fraction}{name}"),
    }
}

/// Rows as Go's tabwriter aligns them: each cell but the last with a comma, padded by one blank at least, eight wide at
/// least. A name from outside cannot end a line.
struct Table {
    rows: Vec<Row>,
    widths: Vec<usize>,
    /// Bytes of the cells alone.
    cells: usize,
    is_cut_off: bool,
}

impl Table {
    fn new(head: Row) -> Self {
        let mut table = Self { rows: Vec::new(), widths: vec![WIDTH_MIN; head.len()], cells: 0, is_cut_off: false };
        table.push(head);
        table
    }

    /// Adds a row, unless the text would become too long: then neither this one nor any later is shown.
    fn push(&mut self, row: Row) {
        if self.is_cut_off {
            return;
        }
        let needs = row.iter().map(|cell| (cell.chars().count() + 2).min(WIDTH_MAX));
        let widths: Vec<_> = self.widths.iter().zip(needs).map(|(width, need)| need.max(*width)).collect();
        let cells = self.cells + row.iter().map(|cell| cell.len() + 2).sum::<usize>();
        // No row gets more padding than the columns are wide.
        let padding = widths.iter().sum::<usize>() * (self.rows.len() + 1);
        self.is_cut_off = cells.max(padding) > TEXT_MAX;
        if !self.is_cut_off {
            (self.widths, self.cells) = (widths, cells);
            self.rows.push(row);
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            for (n, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
                let cell = cell.replace(|c: char| c.is_control(), "?");
                match n + 1 == row.len() {
                    true => out.push_str(&cell),
                    false => {
                        let _ = write!(out, "{:width$}", format!("{cell},"));
                    }
                }
            }
            out.push('\n');
        }
        if self.is_cut_off {
            let rows = self.rows.len().saturating_sub(1);
            let _ = writeln!(out, "# cut off after {rows} rows: ?workspace=<path> shows one workspace alone");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_seat_seconds_read_as_in_go() {
        let texts = [0, 5_000_000, 12_500_000, 1_500, 90_000_000_000, 61_500_000_000].map(go_duration);
        assert_eq!(texts, ["0s", "5ms", "12.5ms", "1.5µs", "1m30s", "1m1.5s"]);
        assert_eq!([300_000, 1_234_567_890].map(seat_seconds), ["0.00300000ss", "12.34567890ss"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(row(&["Name", "Index", "Last"]));
        table.push(row(&["a\nlong name", "1", ""]));
        assert_eq!(table.text(), "Name,        Index,  Last\na?long name, 1,      \n");
    }

    #[test]
    fn a_long_answer_says_that_it_is_cut_off() {
        let mut table = Table::new(row(&["Name", "Last"]));
        table.push(row(&[&"long".repeat(100_000), "x"]));
        (0..1_000_000).for_each(|_| table.push(row(&["a", "b"])));
        let text = table.text();
        assert!(text.len() <= TEXT_MAX * 2 + 100, "{}", text.len());
        let shown = text.lines().count() - 2;
        assert!((10_000..1_000_000).contains(&shown), "{shown}");
        let last = format!("# cut off after {shown} rows: ?workspace=<path> shows one workspace alone\n");
        assert!(text.ends_with(&last));
    }
}
