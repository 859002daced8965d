use std::cell::{Cell, RefCell};

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// An answer that goes on excuses a pong that is late; when it comes, it is no answer to the next ping.
#[tokio::test]
async fn a_late_pong_does_not_pass_for_the_next_one() {
    let (near, mut far) = tokio::io::duplex(64 << 10);
    // An empty SETTINGS frame.
    far.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let out = Deferred::new(near);
    let (_sender, mut connection) = Builder::new().handshake::<_, Bytes>(out.clone()).await.unwrap();
    let pings = connection.ping_pong().unwrap();
    let (far, asked) = (RefCell::new(far), Cell::new(0));
    // Asked when a ping is sent, and when its time is over without a pong.
    let heard = || {
        asked.set(asked.get() + 1);
        if asked.get() != 2 {
            return false;
        }
        let mut sent = Vec::new();
        far.borrow_mut().read_buf(&mut sent).now_or_never().unwrap().unwrap();
        let (_, ping) = sent.split_last_chunk::<8>().unwrap();
        let pong = [&[0, 0, 8, 6, 1, 0, 0, 0, 0], &ping[..]].concat();
        far.borrow_mut().write_all(&pong).now_or_never().unwrap().unwrap();
        true
    };
    let probes = Probes { after: Duration::from_millis(1), patience: Duration::from_millis(1) };
    let freed = Freed::default();
    let ended = timeout(Duration::from_secs(20), drive(connection, out, pings, probes, heard, &freed)).await;
    assert!(ended.expect("it is never found dead").is_err());
    assert_eq!(asked.get(), 4, "the second ping is the last");
}
