//! Lists and watches the LogicalClusters and Workspaces of one shard, for as long as the gateway runs.
//!
//! A watch that ends is resumed from the last revision heard of (bookmarks keep it young); a revision that the shard
//! no longer has leads to a new list. Failures back off and change nothing in the index.

use std::{collections::HashSet, sync::Arc, time::Duration};

use apiserver_api::ClusterName;
use bytes::{Buf, BytesMut};
use fairness::Clock;
use http::{HeaderValue, Request, StatusCode, header::ACCEPT};
use http_body_util::{BodyExt, Limited};
use observers::WorkspaceEvent;
use tokio::time::{Instant, sleep, timeout};

use super::{
    News,
    objects::{Event, List, Object},
    trust,
};
use crate::{Body, BoxError, core::Core, stamp::Stamp, upstream::SendError, worker::mix};

const PAGE: usize = 500;
const PAGE_BYTES_MAX: usize = 64 << 20;
const LINE_BYTES_MAX: usize = 8 << 20;
/// Of the answer to a watch that is refused.
const STATUS_BYTES_MAX: usize = 64 << 10;
/// Of a shard's own words in the log and the probes, in characters.
const TEXT_MAX: usize = 200;
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch is asked to end after this, and taken for dead a little later.
const WATCH_SECONDS: u64 = 600;
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS + 30);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Short, so that a shard that comes back is known again within seconds.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A watch that ends sooner is a failure, though of the politest kind.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// A shard without the Workspace API may get it.
const ABSENT_RETRY: Duration = Duration::from_secs(60);
/// How often a shard whose workspaces are not followed is asked, which is then the only sign of life.
const PROBE: Duration = Duration::from_secs(5);

/// What is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Decides which clusters a shard holds.
    LogicalClusters,
    /// Decides which paths lead to them.
    Workspaces,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::LogicalClusters => "/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters",
            Self::Workspaces => "/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspaces",
        }
    }

    fn list_kind(self) -> &'static str {
        match self {
            Self::LogicalClusters => "LogicalClusterList",
            Self::Workspaces => "WorkspaceList",
        }
    }
}

/// Why a list or watch ended.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The shard does not serve this kind of object.
    #[error("the shard does not serve it: {0}")]
    Absent(String),
    /// It answers with something else.
    #[error("{0}")]
    Unusable(String),
    /// The revision to resume from is too old.
    #[error("the revision is no longer there")]
    Expired,
    #[error(transparent)]
    Failed(#[from] BoxError),
}

/// One follower.
pub(crate) struct Feed {
    pub(crate) core: Arc<Core>,
    pub(crate) shard: usize,
    pub(crate) kind: Kind,
    /// The number of the pool of the gateway's own connections.
    pub(crate) pool: usize,
}

impl Feed {
    /// Follows until the task is dropped; workspaces, until it is clear that the only shard has no logical clusters.
    pub(crate) async fn run(self) {
        let mut backoff = BACKOFF_MIN;
        let mut revision: Option<String> = None;
        let mut is_told = false;
        loop {
            let (began, is_watch) = (Instant::now(), revision.is_some());
            let outcome = match &mut revision {
                None => {
                    let list = timeout(LIST_TIMEOUT, self.list()).await;
                    list.unwrap_or_else(|_| Err(failed("the list took too long"))).map(|from| revision = Some(from))
                }
                Some(from) => self.watch(from).await.and_then(|()| {
                    // A shard that hangs up at once would be asked again at full speed.
                    (began.elapsed() >= WATCH_MIN).then_some(()).ok_or_else(|| failed("the watch ended at once"))
                }),
            };
            if is_watch && began.elapsed() >= WATCH_MIN {
                backoff = BACKOFF_MIN;
            }
            let Some(entry) = self.core.shards.get(self.shard) else { return };
            let name = &*entry.shard.name;
            match outcome {
                Ok(()) => {
                    if self.kind == Kind::Workspaces && std::mem::take(&mut is_told) {
                        tracing::warn!(shard = name, "workspaces are there now, and are found by path");
                    }
                    continue;
                }
                Err(End::Expired) => revision = None,
                // It has no such objects, or is no API server of this kind at all.
                Err(End::Absent(why) | End::Unusable(why)) if self.may_be_plain() => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(
                            shard = name,
                            why,
                            "no logical clusters: every workspace path is served by this shard"
                        );
                    }
                    self.core.become_static(self.shard);
                    self.answers();
                    // Nothing is followed, but it goes on being asked: so it is known whether the shard is there.
                    backoff = BACKOFF_MIN;
                    sleep(PROBE).await;
                    continue;
                }
                Err(End::Absent(why)) if self.kind == Kind::Workspaces => {
                    self.core.index.sync_workspaces(self.shard, &HashSet::new());
                    self.answers();
                    if self.core.index.is_static() {
                        return;
                    }
                    // Without logical clusters it is not followed at all, which is said elsewhere.
                    if self.core.index.has_clusters(self.shard) && !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(shard = name, why, "no workspaces: logical clusters are found by name only");
                    }
                    sleep(ABSENT_RETRY).await;
                    continue;
                }
                Err(error) => {
                    let is_echo = matches!(&error, End::Failed(e) if matches!(e.downcast_ref(), Some(SendError::Open)));
                    let error = with_hint(chain(&error));
                    let now_ns = self.core.clock.now_ns();
                    if let Some(error) = entry.reachability.failed(self.kind, error, is_echo, now_ns) {
                        tracing::warn!(shard = name, error, "the shard does not tell its workspaces");
                    }
                }
            }
            if self.kind == Kind::Workspaces && self.core.index.is_static() {
                // The other follower says whether the shard is there.
                self.answers();
                return;
            }
            sleep(jitter(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Whether the shard may turn out to be one without logical clusters, to which all paths lead. One that has told some
    /// is none, whatever it answers later.
    fn may_be_plain(&self) -> bool {
        self.kind == Kind::LogicalClusters
            && self.core.shards.is_only(self.shard)
            && !self.core.index.has_clusters(self.shard)
    }

    /// The shard is gone, and with it all that it held. Nobody follows it any more.
    pub(crate) async fn forget(&self) {
        for name in self.core.index.forget_shard(self.shard) {
            self.gone(name).await;
        }
    }

    /// The shard has given what was asked for.
    fn answers(&self) {
        let Some(entry) = self.core.shards.get(self.shard) else { return };
        if entry.reachability.works(self.kind) {
            tracing::warn!(shard = &*entry.shard.name, "the shard tells its workspaces again");
        }
    }

    /// Lists everything, tells the index, and returns the revision to watch from.
    async fn list(&self) -> Result<String, End> {
        let entry = self.core.shards.get(self.shard).ok_or_else(|| failed("no such shard"))?;
        trust::check(&self.core, &entry.shard, self.pool).await?;
        let (mut clusters, mut workspaces) = (HashSet::new(), HashSet::new());
        let mut more = String::new();
        loop {
            let query = match more.is_empty() {
                true => format!("limit={PAGE}"),
                false => format!("limit={PAGE}&continue={}", encode(&more)),
            };
            let page = self.page(&query).await?;
            for object in &page.items {
                let Some(cluster) = object.cluster() else { continue };
                if self.kind == Kind::Workspaces {
                    workspaces.insert((cluster.clone(), object.metadata.name.as_str().into()));
                } else {
                    clusters.insert(cluster.clone());
                }
                self.put(&cluster, object).await;
            }
            more = page.metadata.more;
            if more.is_empty() {
                match self.kind {
                    Kind::LogicalClusters => {
                        for name in self.core.index.sync_clusters(self.shard, &clusters) {
                            self.gone(name).await;
                        }
                    }
                    Kind::Workspaces => self.core.index.sync_workspaces(self.shard, &workspaces),
                }
                self.answers();
                return Ok(page.metadata.resource_version);
            }
        }
    }

    async fn page(&self, query: &str) -> Result<List, End> {
        let response = self.get(query).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await?.to_bytes();
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(End::Absent("it answers 404".into())),
            StatusCode::GONE => return Err(End::Expired),
            other => return Err(self.refused("list", other, &body)),
        }
        let what = |is: &str| format!("its answer to the list of {} is {is}", self.kind.path());
        match serde_json::from_slice::<List>(&body) {
            Ok(list) if list.kind == self.kind.list_kind() => Ok(list),
            Ok(list) => Err(End::Unusable(what(&format!("a {:?}", shortened(&list.kind))))),
            Err(error) => Err(End::Unusable(what(&format!("none: {error}")))),
        }
    }

    /// Follows changes since `revision` until the shard ends the watch. However it ends, `revision` is then the last
    /// one heard of.
    async fn watch(&self, revision: &mut String) -> Result<(), End> {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            encode(revision)
        );
        let response =
            timeout(LIST_TIMEOUT, self.get(&query)).await.map_err(|_| failed("the watch is not answered"))??;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::GONE => return Err(End::Expired),
            other => {
                let body = timeout(LIST_TIMEOUT, Limited::new(response.into_body(), STATUS_BYTES_MAX).collect()).await;
                let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
                return Err(self.refused("watch", other, &body));
            }
        }
        self.answers();
        let (mut body, mut lines) = (response.into_body(), BytesMut::new());
        // How much of the unfinished line is known to hold no line end.
        let mut searched = 0;
        loop {
            let frame = timeout(SILENCE_MAX, body.frame()).await.map_err(|_| failed("the watch is silent"))?;
            let Some(frame) = frame.transpose()? else { return Ok(()) };
            lines.extend_from_slice(frame.data_ref().map_or(&[], |d| d));
            while let Some(end) = memchr::memchr(b'\n', lines.get(searched..).unwrap_or_default()) {
                let line = lines.split_to(searched + end);
                lines.advance(1);
                searched = 0;
                if let Some(to) = self.event(&line).await? {
                    *revision = to;
                }
            }
            searched = lines.len();
            if lines.len() > LINE_BYTES_MAX {
                return Err(failed("an event of the watch is too long"));
            }
        }
    }

    async fn event(&self, line: &[u8]) -> Result<Option<String>, End> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let event: Event = serde_json::from_slice(line).map_err(BoxError::from)?;
        let object = event.object;
        match (&*event.kind, object.cluster()) {
            ("ERROR", _) if object.code == 410 => return Err(End::Expired),
            ("ERROR", _) => return Err(failed(&format!("the watch ends with code {}", object.code))),
            ("ADDED" | "MODIFIED", Some(cluster)) => self.put(&cluster, &object).await,
            ("DELETED", Some(cluster)) if self.kind == Kind::Workspaces => {
                self.core.index.remove_workspace(self.shard, &cluster, &object.metadata.name);
            }
            ("DELETED", Some(cluster)) if self.core.index.remove_cluster(self.shard, &cluster) => {
                self.gone(cluster).await;
            }
            _ => {}
        }
        Ok(Some(object.metadata.resource_version).filter(|r| !r.is_empty()))
    }

    async fn put(&self, cluster: &ClusterName, object: &Object) {
        let index = &self.core.index;
        if self.kind == Kind::Workspaces {
            let Some(workspace) = object.workspace() else {
                return index.remove_workspace(self.shard, cluster, &object.metadata.name);
            };
            if let Some(child) = index.put_workspace(self.shard, cluster, &object.metadata.name, workspace) {
                self.core.reclassify(&child);
            }
            return;
        }
        let Some(entry) = self.core.shards.get(self.shard) else { return };
        let news = index.put_cluster(self.shard, cluster, object.logical_cluster(&entry.shard.name));
        if let Some(gate) = &entry.gate {
            match news {
                News::Appeared => {
                    gate.set_known_workspaces(index.held_by(self.shard));
                    gate.declare_workspace(cluster);
                }
                News::Changed => self.core.reclassify(cluster),
                News::Nothing => {}
            }
        }
        if let (News::Appeared, Some(feed)) = (news, &entry.feed) {
            // Fails only when nobody observes any more.
            let _ = feed.send(WorkspaceEvent::Appeared(cluster.clone())).await;
        }
    }

    /// Tells everybody who keeps something about the cluster on this shard.
    async fn gone(&self, cluster: ClusterName) {
        let Some(entry) = self.core.shards.get(self.shard) else { return };
        if let Some(gate) = &entry.gate {
            gate.forget_workspace(&cluster);
            gate.set_known_workspaces(self.core.index.held_by(self.shard));
        }
        if !self.core.index.knows(&cluster) {
            self.core.forget_workspace(&cluster);
        }
        if let Some(feed) = &entry.feed {
            let _ = feed.send(WorkspaceEvent::Disappeared(cluster)).await;
        }
    }

    /// The shard does not give what was asked for, and says why, perhaps.
    fn refused(&self, what: &str, status: StatusCode, body: &[u8]) -> End {
        let (path, user) = (self.kind.path(), &self.core.own_identity.user.name);
        let told = serde_json::from_slice::<Answer>(body).unwrap_or_default().message;
        let told = if told.is_empty() { String::new() } else { format!(": {:?}", shortened(&told)) };
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => DISTRUST,
            _ => "",
        };
        failed(&format!("the {what} of {path} as {user} is answered {status}{told}{hint}"))
    }

    async fn get(&self, query: &str) -> Result<http::Response<Body>, End> {
        let entry = self.core.shards.get(self.shard).ok_or_else(|| failed("no such shard"))?;
        let request = Request::get(format!("{}?{query}", self.kind.path()))
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .body(Body::empty())
            .map_err(BoxError::from)?;
        let stamp = Stamp::of(&self.core.own_identity);
        entry.shard.send(self.pool, &self.core.clock, &stamp, request).await.map_err(|error| End::Failed(error.into()))
    }
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What to look at when a shard does not believe who asks.
const DISTRUST: &str =
    "; does the shard believe the certificate of shards[].tls.clientCertificateFile? See docs/shards.md";

/// A shard that wants another certificate, or one at all, says so while TLS is set up.
fn with_hint(error: String) -> String {
    let alerts = ["CertificateRequired", "UnknownCA", "BadCertificate", "AccessDenied"];
    let is_alert = error.contains("received fatal alert") && alerts.iter().any(|alert| error.contains(alert));
    if is_alert { error + DISTRUST } else { error }
}

/// The beginning of a text that is somebody else's.
fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// A Status, of which only this counts.
#[derive(Default, serde::Deserialize)]
struct Answer {
    #[serde(default)]
    message: String,
}

fn failed(why: &str) -> End {
    End::Failed(why.into())
}

fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Between half and all of `time`, so that gateways do not come back together.
fn jitter(time: Duration) -> Duration {
    let random = mix(uuid::Uuid::new_v4().as_u64_pair().1);
    time / 2 + time.mul_f64(random as f64 / u64::MAX as f64 / 2.0)
}
