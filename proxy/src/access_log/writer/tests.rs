//! Rotation, and sinks that are slow or fail.

use std::{
    fs::{read_to_string, remove_file, rename},
    sync::{
        atomic::AtomicUsize,
        mpsc::{Sender, channel},
    },
};

use super::*;
use crate::{
    access_log::{BYTES_MAX, texts::Piece},
    trail::Trail,
};

#[test]
fn a_file_that_was_renamed_removed_or_truncated_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    let mut out = Output::open(&Sink::File(path.clone())).unwrap();
    out.write(b"1\n").unwrap();
    out.write(b"2\n").unwrap();
    rename(&path, &old).unwrap();
    out.write(b"3\n").unwrap();
    assert_eq!((&*read_to_string(&old).unwrap(), &*read_to_string(&path).unwrap()), ("1\n2\n", "3\n"));
    remove_file(&path).unwrap();
    out.write(b"4\n").unwrap();
    assert_eq!(read_to_string(&path).unwrap(), "4\n");
    File::options().write(true).truncate(true).open(&path).unwrap();
    out.write(b"5\n").unwrap();
    assert_eq!(read_to_string(&path).unwrap(), "5\n", "no hole where the old lines were");
    drop(out);
    Output::open(&Sink::File(path.clone())).unwrap().write(b"6\n").unwrap();
    assert_eq!(read_to_string(&path).unwrap(), "5\n6\n", "a restart goes on");
}

#[test]
fn what_is_no_file_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [directory.path().to_owned(), socket, directory.path().join("no/such/log")] {
        let Err(error) = Output::open(&Sink::File(path.clone())) else { panic!("{path:?} was opened") };
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    }
    let Err(error) = Output::open(&Sink::File(directory.path().into())) else { panic!("a directory was opened") };
    assert!(error.to_string().ends_with(": want a regular file, or - for standard output"), "{error}");
}

#[test]
fn standard_output_is_not_locked() {
    let held = io::stdout().lock();
    let thread = thread::spawn(|| Output::open(&Sink::Stdout).unwrap().write(b""));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !thread.is_finished() {
        assert!(Instant::now() < deadline, "it waits for others who print");
        thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    thread.join().unwrap().unwrap();
}

/// Takes so many bytes, then has no room until it is told otherwise.
struct Disk {
    room: usize,
    bytes: Vec<u8>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room);
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= taken;
        self.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_torn_line_is_ended_and_nothing_else_is() {
    for (room, want) in [(0, "c\n"), (1, "a\nc\n"), (2, "a\nc\n"), (3, "a\nb\nc\n"), (4, "a\nb\nc\n")] {
        let (mut disk, mut is_torn) = (Disk { room, bytes: Vec::new() }, false);
        assert_eq!(write_lines(&mut disk, &mut is_torn, b"a\nb\n").is_ok(), room == 4);
        disk.room = 100;
        write_lines(&mut disk, &mut is_torn, b"c\n").unwrap();
        assert_eq!(String::from_utf8(disk.bytes).unwrap(), want, "room for {room}");
    }
}

/// A log for `lines` lines whose writes are reported to the test, and wait for its word.
struct Held {
    log: AccessLog,
    stop: Arc<AtomicBool>,
    /// Times that it waited for more lines.
    gathered: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
    writes: Receiver<Vec<u8>>,
    words: Sender<io::Result<()>>,
}

fn held(lines: usize) -> Held {
    let (sender, receiver) = sync_channel(lines);
    let (report, writes) = channel();
    let (words, word) = channel();
    let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
    let gathered = Arc::new(AtomicUsize::new(0));
    let (shared, ending, waits) = (counts.clone(), stop.clone(), gathered.clone());
    let thread = thread::spawn(move || {
        let mut sink = |batch: &[u8]| {
            // Without the test's end of it nothing fails.
            let _ = report.send(batch.to_vec());
            word.recv().unwrap_or(Ok(()))
        };
        let gather = || _ = waits.fetch_add(1, Relaxed);
        write_all(&receiver, &mut sink, gather, &WallClock::new(), &shared, &ending);
    });
    let quota = Quota { max: 0.into(), used: 0.into() };
    let place = Arc::new(Mutex::new(Place { sink: Sink::Stdout, next: None }));
    let log = AccessLog { lines: sender, below: u64::MAX.into(), quota, counts, place };
    Held { log, stop, gathered, thread, writes, words }
}

fn line() -> Box<Draft> {
    Box::new(Draft { trail: Some(Trail::new(0)), ..Draft::default() })
}

impl Held {
    fn counts(&self) -> [u64; 3] {
        let Counts { written, dropped, failed, .. } = &*self.log.counts;
        [written, dropped, failed].map(|count| count.load(Relaxed))
    }
}

#[test]
fn a_slow_sink_costs_lines_and_no_time_and_the_end_loses_none() {
    let held = held(4);
    held.log.offer(line());
    let first = held.writes.recv().unwrap();
    assert!(first.starts_with(b"{\"time\":\"") && first.ends_with(b"}\n"), "{}", String::from_utf8_lossy(&first));
    // It is being written: so many have room, and more have not.
    (0..7).for_each(|_| held.log.offer(line()));
    assert_eq!(held.counts(), [0, 3, 0]);
    held.stop.store(true, Relaxed);
    held.words.send(Ok(())).unwrap();
    held.words.send(Ok(())).unwrap();
    assert_eq!(held.writes.recv().unwrap().iter().filter(|b| **b == b'\n').count(), 4);
    let counts = held.log.counts.clone();
    held.thread.join().unwrap();
    assert_eq!((counts.written.load(Relaxed), counts.dropped.load(Relaxed)), (5, 3));
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let held = held(4);
    held.log.offer(line());
    held.writes.recv().unwrap();
    held.words.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    held.log.offer(line());
    assert!(held.writes.recv().unwrap().starts_with(b"{"));
    assert_eq!(held.counts(), [0, 0, 1]);
    held.words.send(Ok(())).unwrap();
    held.log.offer(line());
    assert!(held.writes.recv().unwrap().starts_with(b"{"));
    assert_eq!(held.counts(), [1, 0, 1]);
    held.words.send(Ok(())).unwrap();
    held.stop.store(true, Relaxed);
    held.thread.join().unwrap();
}

#[test]
fn a_full_queue_is_written_without_a_pause() {
    let held = held(LINES_MAX);
    held.log.offer(line());
    held.writes.recv().unwrap();
    let long = || {
        let mut draft = line();
        draft.texts.put(Piece::UserAgent, &"x".repeat(200));
        draft
    };
    (0..3000).for_each(|_| held.log.offer(long()));
    let (mut bytes, mut batches) = (0, 0);
    while bytes < 3000 {
        held.words.send(Ok(())).unwrap();
        let batch = held.writes.recv().unwrap();
        assert!(batch.len() < BATCH_MAX + 4096);
        bytes += batch.iter().filter(|byte| **byte == b'\n').count();
        batches += 1;
    }
    assert!(batches > 2, "{batches}");
    assert_eq!(held.gathered.load(Relaxed), 2, "for the first line, and for the next");
    held.log.offer(line());
    held.words.send(Ok(())).unwrap();
    held.writes.recv().unwrap();
    assert_eq!(held.gathered.load(Relaxed), 3, "the last batch was not full");
    held.words.send(Ok(())).unwrap();
    held.stop.store(true, Relaxed);
    held.thread.join().unwrap();
}

#[test]
fn what_waits_is_bounded_by_bytes_too() {
    let held = held(LINES_MAX);
    held.log.offer(line());
    held.writes.recv().unwrap();
    let large = || {
        let mut draft = line();
        draft.texts.put(Piece::Path, &"x".repeat(2048));
        draft.texts.put_query(&"x".repeat(2048));
        draft.texts.put(Piece::Query, &"x".repeat(2048));
        draft
    };
    let room = BYTES_MAX / large().size();
    assert!(room < LINES_MAX - 1, "{room}");
    (0..room + 7).for_each(|_| held.log.offer(large()));
    assert_eq!(held.counts(), [0, 7, 0]);
    held.stop.store(true, Relaxed);
    drop(held.words);
    held.thread.join().unwrap();
    assert_eq!(held.log.counts.waiting.load(Relaxed), 0);
}
