//! `fairness.yaml` changes in every way a file can change while clients send requests.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::common::{Dev, PATIENCE};
use serde_json::Value;

/// So few that clients wait for them.
const SEATS: &str = "2";

/// A file with one more level than the mandatory ones; its users are everybody but the administrator's.
fn fairness(level: &str, shares: u32) -> String {
    format!(
        r#"
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {{ name: {level} }}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: {shares}
    limitResponse: {{ type: Queue, queuing: {{ queues: 8, handSize: 2, queueLengthLimit: 50 }} }}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{ name: {level} }}
spec:
  priorityLevelConfiguration: {{ name: {level} }}
  matchingPrecedence: 2
  distinguisherMethod: {{ type: ByUser }}
  rules:
  - subjects: [{{ kind: Group, group: {{ name: "*" }} }}]
    resourceRules: [{{ verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"] }}]
    nonResourceRules: [{{ verbs: ["*"], nonResourceURLs: ["*"] }}]
"#
    )
}

/// Lays `fairness.yaml` out as a mounted ConfigMap: a link to a file behind a link that is swapped.
fn config_map(directory: &Path, version: u32, text: &str) {
    let (data, new) = (directory.join(format!("..{version}")), directory.join("..data_tmp"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("fairness.yaml"), text).unwrap();
    symlink(format!("..{version}"), &new).unwrap();
    let old = fs::read_link(directory.join("..data")).ok();
    fs::rename(&new, directory.join("..data")).unwrap();
    let file = directory.join("fairness.yaml");
    if fs::read_link(&file).is_err() {
        let link = directory.join("..link");
        symlink("..data/fairness.yaml", &link).unwrap();
        fs::rename(link, file).unwrap();
    }
    if let Some(old) = old {
        fs::remove_dir_all(directory.join(old)).unwrap();
    }
}

fn rename_over(directory: &Path, text: &str) {
    fs::write(directory.join(".new"), text).unwrap();
    fs::rename(directory.join(".new"), directory.join("fairness.yaml")).unwrap();
}

/// The gateway's configuration beside `fairness.yaml`.
fn start(directory: &Path) -> Dev {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let gateway = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nfairness: { file: fairness.yaml }\n";
    let config = directory.join("gateway.yaml");
    fs::write(&config, gateway).unwrap();
    Dev::start(&directory.join("data"), &["--config", config.to_str().unwrap(), "--seats", SEATS])
}

async fn admin(dev: &Dev, path: &str) -> String {
    reqwest::get(format!("{}{path}", dev.admin)).await.unwrap().text().await.unwrap()
}

/// Polls the admin address until it says what is wanted.
async fn becomes(dev: &Dev, path: &str, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let text = admin(dev, path).await;
        if wanted(&text) {
            return text;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}:\n{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The value of a series in the text of `/metrics`; 0 without it.
fn value(text: &str, series: &str) -> u32 {
    text.lines().find_map(|line| line.strip_prefix(series)).map_or(0, |n| n.trim().parse().unwrap())
}

fn hang_up(dev: &Dev) {
    assert!(Command::new("kill").args(["-HUP", &dev.pid().to_string()]).status().unwrap().success());
}

/// Whether `/configz` says that the latest content of `fairness.yaml` is not in force.
fn is_refused(configz: &str) -> bool {
    let shown: Value = serde_json::from_str(configz).unwrap();
    !shown["fairness"]["lastError"].is_null()
}

/// CF-01, CF-02: every way to write the file counts, and what is wrong with it changes nothing.
#[tokio::test]
async fn every_way_to_change_the_file_is_noticed_and_wrong_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    config_map(place, 1, &fairness("first", 10));
    let dev = start(place);
    let level = async |name: &str| {
        let series = format!("nominal_limit_seats{{priority_level=\"{name}\"}}");
        becomes(&dev, "/metrics", name, |text| text.contains(&series)).await
    };
    level("first").await;
    config_map(place, 2, &fairness("second", 10));
    level("second").await;
    config_map(place, 3, &fairness("third", 10));
    let text = level("third").await;
    assert!(!text.contains("priority_level=\"second\""), "its series go away");
    for wrong in ["a: [", "apiVersion: v1\nkind: Pod\n"] {
        rename_over(place, wrong);
        becomes(&dev, "/configz", wrong, is_refused).await;
        rename_over(place, &fairness("third", 20));
        becomes(&dev, "/configz", "good again", |text| !is_refused(text)).await;
        rename_over(place, &fairness("third", 10));
    }
    rename_over(place, "kind: Pod");
    let shown = becomes(&dev, "/configz", "refused", |text| text.contains("want FlowSchema")).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["fairness"]["file"].as_str().unwrap().ends_with("fairness.yaml"), "{shown}");
    level("third").await;
    assert_eq!(admin(&dev, "/readyz").await, "ok");
    fs::write(place.join("fairness.yaml"), fairness("written", 10)).unwrap();
    level("written").await;
    // A writer that is interrupted, and one that is slow: what is there is refused until it is whole.
    let whole = fairness("whole", 10);
    let (half, rest) = whole.split_at(whole.find("queueLengthLimit").unwrap());
    for (text, why) in [(half, "is not YAML"), ("", "is empty"), ("# soon\n", "is empty")] {
        fs::write(place.join("fairness.yaml"), text).unwrap();
        becomes(&dev, "/configz", why, |text| text.contains(why)).await;
    }
    fs::write(place.join("fairness.yaml"), [half, rest].concat()).unwrap();
    level("whole").await;
    // It is away for a moment.
    fs::remove_file(place.join("fairness.yaml")).unwrap();
    becomes(&dev, "/configz", "missing", |text| text.contains("cannot be read")).await;
    let text = level("whole").await;
    assert!(text.contains("fairgate_config_reloads_total{file=\"fairness\",outcome=\"refused\"}"), "{text}");
    rename_over(place, &whole);
    becomes(&dev, "/configz", "there again", |text| !is_refused(text)).await;
    rename_over(place, &fairness("signalled", 10));
    hang_up(&dev);
    level("signalled").await;
    assert_eq!(dev.interrupt(), Some(0));
}

/// Requests of users without privileges, who wait for two seats: each must be answered, by what it asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_the_file_changes_all_the_time() {
    const CHANGES: u32 = 60;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    config_map(place, 0, &fairness("aaa", 10));
    let dev = start(place);
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..16 {
        let (client, stop, answered) = (dev.client(), stop.clone(), answered.clone());
        let url = format!("{}/clusters/root/api/v1/namespaces/default", dev.gateway);
        clients.spawn(async move {
            while !stop.load(Relaxed) {
                let answer = client
                    .get(&url)
                    .header("impersonate-user", format!("user-{n}"))
                    .header("impersonate-group", "system:kcp:admin")
                    .send()
                    .await
                    .unwrap_or_else(|e| panic!("client {n}: {e}"));
                let (status, text) = (answer.status(), answer.text().await.unwrap());
                assert_eq!(status, 200, "{text}");
                assert!(text.contains("\"name\":\"default\""), "{text}");
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    for n in 1..=CHANGES {
        let text = match n % 5 {
            4 => "kind: Pod\n".to_owned(),
            // The levels' order changes with each.
            kind => fairness(["aaa", "mmm", "zzz", "dog"][kind as usize], n),
        };
        match n % 4 {
            0 => config_map(place, n, &text),
            1 => fs::write(place.join("fairness.yaml"), &text).unwrap(),
            _ => rename_over(place, &text),
        }
        if n % 3 == 0 {
            hang_up(&dev);
        }
        let text = admin(&dev, "/metrics").await;
        let in_use = value(&text, "fairgate_shard_seats_in_use{shard=\"root\"} ");
        assert!(in_use <= SEATS.parse().unwrap(), "{in_use} seats in use");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    rename_over(place, &fairness("last", 7));
    let text = becomes(&dev, "/metrics", "last", |text| text.contains("priority_level=\"last\"")).await;
    stop.store(true, Relaxed);
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    assert!(answered.load(Relaxed) > u64::from(CHANGES), "{answered:?}");
    let waits = |end: &str, le: &str| {
        let begin = format!("fairgate_request_phase_duration_seconds_{end}{{phase=\"wait\",");
        let lines = text.lines().filter(|line| line.starts_with(&begin) && line.contains(le));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum::<u32>()
    };
    let waited = waits("count", "") - waits("bucket", "le=\"0.0005\"");
    assert!(waited > CHANGES, "only {waited} requests waited");
    let count = |outcome: &str| {
        value(&text, &format!("fairgate_config_reloads_total{{file=\"fairness\",outcome=\"{outcome}\"}} "))
    };
    assert!(
        count("applied") > 10 && count("refused") > 2,
        "{} applied, {} refused",
        count("applied"),
        count("refused")
    );
    becomes(&dev, "/metrics", "all seats free", |text| text.contains("fairgate_shard_seats_in_use{shard=\"root\"} 0"))
        .await;
    assert_eq!(dev.interrupt(), Some(0));
}
