//! A source whose stream the test writes.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::time::Duration;

use apiserver_api::ClusterName;
use observers::{Change, CountEvent, CountSource, CountStream, Observers, Options, SourceError, WorkspaceEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the source's stream yields.
pub type Item = Result<CountEvent, SourceError>;

/// Hands out the streams that the test sends it; each opening waits for the next one.
struct Scripted(mpsc::Receiver<mpsc::Receiver<Item>>);

impl CountSource for Scripted {
    async fn open(&mut self) -> Result<CountStream, SourceError> {
        let mut stream = self.0.recv().await.ok_or("nothing left to open")?;
        Ok(Box::pin(futures_util::stream::poll_fn(move |cx| stream.poll_recv(cx))))
    }
}

/// Running observers with the test's ends of all channels.
pub struct Rig {
    pub observers: Observers,
    pub feed: mpsc::Sender<WorkspaceEvent>,
    pub shutdown: CancellationToken,
    streams: mpsc::Sender<mpsc::Receiver<Item>>,
    stream: Option<mpsc::Sender<Item>>,
}

impl Rig {
    pub fn new(options: Options) -> Self {
        let observers = Observers::new(options);
        let (feed, feed_rx) = mpsc::channel(16);
        let (streams, streams_rx) = mpsc::channel(1);
        let shutdown = CancellationToken::new();
        tokio::spawn(observers.clone().run(Scripted(streams_rx), feed_rx, shutdown.clone()));
        Self { observers, feed, shutdown, streams, stream: None }
    }

    /// Lets the next opening succeed.
    pub async fn connect(&mut self) {
        let (stream, stream_rx) = mpsc::channel(16);
        self.streams.send(stream_rx).await.expect("the driver runs");
        self.stream = Some(stream);
    }

    pub async fn item(&self, item: Item) {
        self.stream.as_ref().expect("connected").send(item).await.expect("the driver reads");
    }

    pub async fn change(&self, cluster: &str, objects: i64) {
        self.item(Ok(CountEvent::Change(change(cluster, "default", objects, 100 * objects)))).await;
    }

    /// A whole snapshot.
    pub async fn snapshot(&mut self, rows: &[(&str, i64)]) {
        self.connect().await;
        for (cluster, objects) in rows {
            self.change(cluster, *objects).await;
        }
        self.item(Ok(CountEvent::Synced)).await;
    }

    pub async fn appear(&self, name: &str) {
        self.feed.send(WorkspaceEvent::Appeared(cluster(name))).await.expect("the driver runs");
    }

    pub async fn disappear(&self, name: &str) {
        self.feed.send(WorkspaceEvent::Disappeared(cluster(name))).await.expect("the driver runs");
    }

    /// Lets virtual time pass, and with it everything that is under way.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    pub fn counts(&self, name: &str) -> fairness::Counts {
        self.observers.counts(&cluster(name), "", "configmaps", "")
    }
}

pub fn cluster(name: &str) -> ClusterName {
    name.parse().expect("a cluster name")
}

pub fn change(name: &str, namespace: &str, objects: i64, bytes: i64) -> Change {
    Change {
        cluster: cluster(name),
        group: "".into(),
        resource: "configmaps".into(),
        namespace: namespace.into(),
        objects,
        bytes,
    }
}
