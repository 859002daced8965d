//! The thread that formats and writes the lines.
//!
//! Lines are gathered for a moment, so that one wake and one write serve many; while more wait than one write takes, it
//! goes on without a pause. Before each write the file's name is
//! looked up: when it stands for another file, or for none, that one is opened. So a log is rotated by renaming it, with
//! no signal; what is truncated in place goes on at its new end.

use std::{
    fs::{File, OpenOptions, metadata},
    io::{self, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use config::{AccessLog as Settings, Sink};

use super::{AccessLog, Counts, Draft, LINES_MAX, Line, Place, Quota, threshold};
use crate::clock::WallClock;

/// How long lines are gathered.
const GATHER: Duration = Duration::from_millis(20);
/// Whether it should end is looked at this often when there is nothing to write.
const IDLE: Duration = Duration::from_millis(100);
/// Bytes of one write.
const BATCH_MAX: usize = 256 << 10;
/// A sink that takes nothing may hold the end up for this long.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The running thread. Dropping it writes what has been handed over, and ends it.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread, which writes to `output`; the other half is for the workers.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(
        settings: &Settings,
        mut output: Output,
        clock: Arc<WallClock>,
    ) -> io::Result<(AccessLog, Self)> {
        let (sender, lines) = sync_channel(LINES_MAX);
        let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let (shared, ending) = (counts.clone(), stop.clone());
        let gather = || thread::sleep(GATHER);
        let place = Arc::new(Mutex::new(Place { sink: settings.sink.clone(), next: None }));
        let goes_to = place.clone();
        let mut sink = move |batch: &[u8]| {
            if let Some(next) = goes_to.lock().unwrap_or_else(PoisonError::into_inner).next.take() {
                output = next;
            }
            output.write(batch)
        };
        let body = move || write_all(&lines, &mut sink, gather, &clock, &shared, &ending);
        let thread = thread::Builder::new().name("fairgate-access-log".to_owned()).spawn(body)?;
        let quota = Quota { max: settings.errors_per_second.into(), used: 0.into() };
        let log = AccessLog { lines: sender, below: threshold(settings.per_million).into(), quota, counts, place };
        Ok((log, Self { stop, thread: Some(thread) }))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + STOP_MAX;
        while !thread.is_finished() {
            if Instant::now() > deadline {
                tracing::warn!("the access log takes no lines: the last ones are lost");
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // A panic in it has been reported.
        let _ = thread.join();
    }
}

/// Writes lines until all senders are gone, or `stop` and none is left. `gather` waits for more of them.
pub(super) fn write_all(
    lines: &Receiver<Box<Draft>>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    mut gather: impl FnMut(),
    clock: &WallClock,
    counts: &Counts,
    stop: &AtomicBool,
) {
    let mut batch = Vec::new();
    let (mut is_failing, mut is_full) = (false, false);
    loop {
        let first = match lines.recv_timeout(IDLE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) if !stop.load(Relaxed) => continue,
            Err(_) => return,
        };
        if !stop.load(Relaxed) && !is_full {
            gather();
        }
        let mut count = 0;
        let wall = clock.wall();
        is_full = false;
        for draft in std::iter::once(first).chain(std::iter::from_fn(|| lines.try_recv().ok())) {
            counts.waiting.fetch_sub(draft.size(), Relaxed);
            let line = draft.trail.as_ref().and_then(|trail| Line::of(&draft, trail, wall));
            if let Some(line) = line
                && serde_json::to_writer(&mut batch, &line).is_ok()
            {
                batch.push(b'\n');
                count += 1;
            }
            if batch.len() >= BATCH_MAX {
                is_full = true;
                break;
            }
        }
        let outcome = sink(&batch);
        let counter = if outcome.is_ok() { &counts.written } else { &counts.failed };
        counter.fetch_add(count, Relaxed);
        match &outcome {
            Err(error) if !is_failing => tracing::error!(%error, "the access log cannot be written; lines are lost"),
            Ok(()) if is_failing => tracing::info!("the access log is written again"),
            _ => {}
        }
        is_failing = outcome.is_err();
        batch.clear();
    }
}

/// Where the lines go.
pub(crate) struct Output {
    /// `None` for standard output.
    path: Option<PathBuf>,
    file: File,
    /// The end of a line is missing.
    is_torn: bool,
}

impl Output {
    /// # Errors
    /// The file cannot be opened, or is no file.
    pub(crate) fn open(sink: &Sink) -> io::Result<Self> {
        let (path, file) = match sink {
            // A descriptor of its own: a reader that stalls must not hold up others who print.
            Sink::Stdout => (None, File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            Sink::File(path) => (Some(path.clone()), open(path)?),
        };
        Ok(Self { path, file, is_torn: false })
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        if let Some(path) = &self.path
            && !is_same(path, &self.file)
        {
            (self.file, self.is_torn) = (open(path)?, false);
        }
        write_lines(&mut self.file, &mut self.is_torn, batch)
    }
}

/// Writes whole lines, after the end of one of which only a part was written the last time.
fn write_lines(out: &mut impl Write, is_torn: &mut bool, batch: &[u8]) -> io::Result<()> {
    if *is_torn {
        out.write_all(b"\n")?;
        *is_torn = false;
    }
    let mut rest = batch;
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                let (done, more) = rest.split_at_checked(written).unwrap_or((rest, &[]));
                *is_torn = done.last().is_some_and(|byte| *byte != b'\n');
                rest = more;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the name stands for this very file.
fn is_same(path: &Path, file: &File) -> bool {
    let place = |found: io::Result<std::fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    place(metadata(path)) == place(file.metadata())
}

fn open(path: &Path) -> io::Result<File> {
    let kind = metadata(path).map(|found| found.file_type());
    // To open a pipe would wait for its reader.
    if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_dir()) {
        let message = format!("{}: want a regular file, or - for standard output", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let opened = OpenOptions::new().create(true).append(true).mode(0o640).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
