//! Rotation, and sinks that are slow or fail.

use std::{
    fs::{read_to_string, remove_file, rename},
    sync::mpsc::{Sender, channel},
};

use super::*;
use crate::trail::Trail;

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
}

/// A log for `lines` lines whose writes are reported to the test, and wait for its word.
struct Held {
    log: AccessLog,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    writes: Receiver<Vec<u8>>,
    words: Sender<io::Result<()>>,
}

fn held(lines: usize) -> Held {
    let (sender, receiver) = sync_channel(lines);
    let (report, writes) = channel();
    let (words, word) = channel();
    let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
    let (shared, ending) = (counts.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let mut sink = |batch: &[u8]| {
            report.send(batch.to_vec()).unwrap();
            word.recv().unwrap()
        };
        write_all(&receiver, &mut sink, &WallClock::new(), &shared, &ending);
    });
    let log = AccessLog { lines: sender, below: u64::MAX, quotas: [].into(), counts };
    Held { log, stop, thread, writes, words }
}

fn line() -> Box<Draft> {
    Box::new(Draft { trail: Some(Trail::new(0)), ..Draft::default() })
}

impl Held {
    fn counts(&self) -> [u64; 3] {
        let Counts { written, dropped, failed } = &*self.log.counts;
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
fn lines_that_cannot_be_written_are_counted_and_a_torn_one_is_ended() {
    let held = held(4);
    held.log.offer(line());
    held.writes.recv().unwrap();
    held.words.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    held.log.offer(line());
    assert!(held.writes.recv().unwrap().starts_with(b"\n{"));
    assert_eq!(held.counts(), [0, 0, 1]);
    held.words.send(Ok(())).unwrap();
    held.log.offer(line());
    assert!(held.writes.recv().unwrap().starts_with(b"{"));
    assert_eq!(held.counts(), [1, 0, 1]);
    held.words.send(Ok(())).unwrap();
    held.stop.store(true, Relaxed);
    held.thread.join().unwrap();
}
