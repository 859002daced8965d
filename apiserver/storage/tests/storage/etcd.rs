//! The store on etcd when members come and go, when others use the same etcd, and with TLS and passwords.

use std::{
    io::{Read, Write},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use apiserver_storage::{
    Condition, Etcd, Range, Store, StoreError, TxnOutcome,
    etcd::{Credentials, Options, SetupError},
};

use base64::Engine as _;
use futures_util::StreamExt;

use crate::common::{changes_until, delete, done, etcd::Cluster, put, range};

/// Writes until it is done, as a client does that reads what became of a write whose answer was lost.
async fn write_for_certain(store: &Etcd, key: &str, value: &str) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "{key} could not be written");
        let Ok(present) = store.get(key).await else { continue };
        let condition = match &present {
            Some(kv) if &kv.value[..] == value.as_bytes() => return kv.mod_revision,
            Some(kv) => Condition::ModRevision(kv.mod_revision),
            None => Condition::Absent,
        };
        match store.txn(put(key, condition, value)).await {
            Ok(TxnOutcome::Done { revision }) => return revision,
            Ok(TxnOutcome::Conflict(_)) | Err(StoreError::Unavailable(_) | StoreError::Uncertain(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn servers_that_share_an_etcd_see_each_others_writes() {
    let cluster = Cluster::single();
    let (one, two) = (cluster.open("/f").await, cluster.open("/f").await);
    for n in 0..200 {
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let key = format!("/a/{n}");
        let revision = done(writer, put(&key, Condition::Absent, "x")).await;
        assert_eq!(reader.get(&key).await.unwrap().unwrap().mod_revision, revision, "read right after the answer");
        let list = reader.range(Range { revision: Some(revision), ..range("/a/") }).await.unwrap();
        assert_eq!(list.items.len(), n + 1);
    }
    let last = done(&one, put("/b", Condition::Absent, "")).await;
    let mut watch = two.watch("/b", last - 1).await.unwrap();
    assert_eq!(changes_until(&mut watch, last).await.len(), 1, "a watch from a revision that only the other had seen");
    // A write on what the other has changed meanwhile.
    let stale = one.txn(delete("/a/0", last)).await.unwrap();
    assert!(matches!(stale, TxnOutcome::Conflict(Some(_))));
}

#[tokio::test]
async fn neighbours_in_the_same_etcd_are_not_seen() {
    let cluster = Cluster::single();
    let store = cluster.open("/f").await;
    let others = [cluster.open("/f2").await, cluster.open("/f/x").await, cluster.open("/e").await];
    let mut watch = store.watch("", store.revision()).await.unwrap();
    for (n, other) in others.iter().enumerate() {
        let foreign = done(other, put("/a/x", Condition::Absent, "foreign")).await;
        // Etcd is further than the last change here: a read must come back all the same.
        let list = store.range(range("/a/")).await.unwrap();
        assert!(list.revision >= foreign, "the read is of a moment after the write");
        assert!(list.items.is_empty(), "{n}");
    }
    let own = done(&store, put("/a/own", Condition::Absent, "")).await;
    let seen = changes_until(&mut watch, own).await;
    // `/f/x` lies below `/f`: whoever chooses that sees it as a key of his own.
    let keys: Vec<_> = seen.iter().map(|c| &*c.1).collect();
    assert_eq!(keys, ["/x/a/x", "/a/own"]);
}

#[tokio::test]
async fn a_server_that_starts_brings_the_history_along() {
    let cluster = Cluster::single();
    let one = cluster.open("/f").await;
    let mut revisions = Vec::new();
    for n in 0..50 {
        revisions.push(done(&one, put(&format!("/a/{n}"), Condition::Absent, "x")).await);
    }
    let two = cluster.open("/f").await;
    let mut watch = two.watch("/a/", revisions[9]).await.unwrap();
    assert_eq!(changes_until(&mut watch, revisions[49]).await.len(), 40);
    one.compact(revisions[19]).await.unwrap();
    let three = cluster.open("/f").await;
    let refused = three.watch("/a/", revisions[9]).await.err();
    assert_eq!(refused, Some(StoreError::Compacted { requested: revisions[9], oldest: revisions[19] }));
    let mut watch = three.watch("/a/", revisions[19]).await.unwrap();
    assert_eq!(changes_until(&mut watch, revisions[49]).await.len(), 30);
    assert_eq!(three.range(Range { revision: Some(revisions[19]), ..range("") }).await.unwrap().items.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_go_on_when_etcd_is_restarted() {
    let mut cluster = Cluster::single();
    let store = Arc::new(cluster.open("/f").await);
    let start = store.revision();
    let mut watch = store.watch("/", start).await.unwrap();
    let mut written = Vec::new();
    for round in 0..3 {
        for n in 0..20 {
            written.push(write_for_certain(&store, &format!("/{round}/{n}"), "x").await);
        }
        cluster.members[0].kill();
        let refused = store.txn(put("/refused", Condition::Absent, "")).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_) | StoreError::Uncertain(_))), "{refused:?}");
        assert!(matches!(store.get("/0/0").await, Err(StoreError::Unavailable(_))), "a stale answer is none");
        cluster.members[0].start();
        cluster.members[0].wait();
    }
    written.push(write_for_certain(&store, "/end", "x").await);
    let seen: Vec<_> = changes_until(&mut watch, *written.last().unwrap()).await.into_iter().map(|c| c.0).collect();
    assert_eq!(seen, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_may_come_and_go() {
    let mut cluster = Cluster::of(3, &[]);
    let store = cluster.open("/f").await;
    let mut watch = store.watch("/", store.revision()).await.unwrap();
    let mut written = Vec::new();
    for round in 0..6 {
        let member = round % 3;
        cluster.members[member].kill();
        for n in 0..20 {
            written.push(write_for_certain(&store, &format!("/{round}/{n}"), "x").await);
        }
        cluster.members[member].start();
        cluster.members[member].wait();
    }
    let seen: Vec<_> = changes_until(&mut watch, *written.last().unwrap()).await.into_iter().map(|c| c.0).collect();
    assert_eq!(seen, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_hears_that_etcd_is_gone_and_that_it_is_back() {
    let mut cluster = Cluster::single();
    let store = cluster.open("/f").await;
    assert_eq!(store.unavailable(), None);
    let becomes = async |there: bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.unavailable().is_none() != there {
            assert!(Instant::now() < deadline, "it is not told whether etcd is there: {there}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    cluster.members[0].kill();
    becomes(false).await;
    assert!(matches!(store.unavailable(), Some(StoreError::Unavailable(_))));
    assert_eq!(store.failure(), None, "no restart mends it");
    cluster.members[0].start();
    cluster.members[0].wait();
    becomes(true).await;
}

/// Certificates of a CA, of members and of a client.
fn certificates(directory: &Path) -> [String; 5] {
    let key = || rcgen::KeyPair::generate().unwrap();
    let write = |name: &str, pem: String| {
        let path = directory.join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let ca_key = key();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let signed = |name: &str| {
        let key = key();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        [write(&format!("{name}.crt"), certificate.pem()), write(&format!("{name}.key"), key.serialize_pem())]
    };
    let ([server, server_key], [client, client_key]) = (signed("server"), signed("client"));
    [write("ca.crt", ca_pem), server, server_key, client, client_key]
}

#[tokio::test]
async fn with_certificates_on_both_sides() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let [ca, server, server_key, client, client_key] = certificates(directory.path());
    let tls = ["--cert-file", &server, "--key-file", &server_key, "--client-cert-auth", "--trusted-ca-file", &ca];
    let cluster = Cluster::of(1, &tls);
    let servers = vec![format!("https://127.0.0.1:{}", cluster.members[0].client_port)];
    let options = Options {
        servers,
        ca_file: Some(ca.into()),
        identity: Some((client.into(), client_key.into())),
        ..cluster.options("/f")
    };
    let store = Etcd::connect(&options).await.unwrap();
    done(&store, put("/a", Condition::Absent, "")).await;
    let refused = Etcd::connect(&Options { identity: None, ..options }).await.err().unwrap();
    assert!(matches!(refused, SetupError::Store { .. }), "{refused}");
    assert!(refused.to_string().contains("Does it want a client certificate? None is given"), "{refused}");
}

/// Files that hold something else are refused by name, before anybody is asked.
#[tokio::test]
async fn files_of_certificates_that_are_none() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [ca, _, _, client, key] = certificates(directory.path());
    let [.., other_key] = certificates(other.path());
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let text = std::fs::read_to_string(&client).unwrap();
    let cut = write("cut", &text[..text.len() / 2]);
    let none = write("none", "kind: Secret\n");
    let garbage = write("garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let locked = write("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let refused = async |ca: &String, identity: Option<(&String, &String)>| {
        let options = Options {
            servers: vec!["https://127.0.0.1:1".into()],
            prefix: "/f".into(),
            ca_file: Some(ca.into()),
            identity: identity.map(|(certificate, key)| (certificate.into(), key.into())),
            credentials: None,
        };
        Etcd::connect(&options).await.err().unwrap().to_string()
    };
    for (file, why) in [
        (&none, "holds no certificate; want PEM with BEGIN CERTIFICATE"),
        (&key, "holds a private key and no certificate; want the certificate there"),
        (&cut, "is damaged: "),
        (&garbage, "holds a certificate that cannot be trusted as etcd's CA: "),
    ] {
        let error = refused(file, None).await;
        assert!(error.starts_with(&format!("{file} {why}")), "{error}");
    }
    for (certificate, key, why) in [
        (&none, &key, format!("{none} holds no certificate; want ")),
        (&key, &client, format!("{key} holds a private key and no certificate; want ")),
        (&client, &client, format!("{client} holds a certificate and no private key; want ")),
        (&client, &none, format!("{none} holds no private key; want PEM with BEGIN PRIVATE KEY")),
        (&client, &locked, format!("{locked} holds an encrypted private key; want ")),
        (&client, &other_key, format!("{client} and {other_key} do not belong together; want ")),
        (&garbage, &key, format!("{key} cannot be used with {garbage}: ")),
    ] {
        let error = refused(&ca, Some((certificate, key))).await;
        assert!(error.starts_with(&why), "{error}");
    }
}

/// A failure before etcd has said anything of its own comes with what may be the matter.
#[tokio::test]
async fn what_is_no_etcd_or_not_trusted_is_told() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [ca, server, server_key, ..] = certificates(directory.path());
    let [other_ca, ..] = certificates(other.path());
    let secure = Cluster::of(1, &["--cert-file", &server, "--key-file", &server_key]);
    let plain = Cluster::single();
    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let web_port = web.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in web.incoming() {
            let mut socket = socket.unwrap();
            let _ = socket.read(&mut [0; 1024]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let (secure_port, plain_port) = (secure.members[0].client_port, plain.members[0].client_port);
    let no_tls = "is an etcd running there, and one without TLS?";
    let cases = [
        (format!("http://127.0.0.1:{secure_port}"), None, no_tls),
        (format!("http://127.0.0.1:{web_port}"), None, no_tls),
        (format!("https://127.0.0.1:{plain_port}"), Some(&ca), "is an etcd running there, and with TLS?"),
        (format!("https://127.0.0.1:{web_port}"), Some(&ca), "is an etcd running there, and with TLS?"),
        (format!("https://127.0.0.1:{secure_port}"), Some(&other_ca), &*format!("signed by one in {other_ca}")),
    ];
    let asked = cases.into_iter().map(async |(server, ca, why)| {
        let options = Options { servers: vec![server], ca_file: ca.map(Into::into), ..plain.options("/f") };
        let error = Etcd::connect(&options).await.err().unwrap().to_string();
        assert!(error.contains(why) && !error.contains("transport error"), "{error}");
    });
    futures_util::future::join_all(asked).await;
    let credentials = Some(Credentials { user: "root".into(), password: "x".into() });
    let error = Etcd::connect(&Options { credentials, ..plain.options("/f") }).await.err().unwrap().to_string();
    assert!(error.ends_with("; leave the credentials out, or turn authentication on"), "{error}");
}

/// A call of etcd's JSON interface.
fn post(port: u16, path: &str, body: &str, token: Option<&str>) -> String {
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let token = token.map_or_else(String::new, |token| format!("Authorization: {token}\r\n"));
    let head = format!("POST {path} HTTP/1.0\r\n{token}Content-Length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{path}: {answer}");
    answer
}

/// Others may change more at once than is kept in memory: then everything is read anew, and once.
#[tokio::test]
async fn a_revision_too_large_to_be_kept_is_passed() {
    // In many parts: only what is not complete yet is kept.
    let long = "x".repeat(150);
    let cluster = Cluster::of(1, &["--max-txn-ops", "5000"]);
    let port = cluster.members[0].client_port;
    let store = cluster.open("/f").await;
    done(&store, put("/kept", Condition::Absent, "")).await;
    let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    for batch in 0..23 {
        let key = |n: usize| encode(format!("/f/many/{long}{batch:02}/{n:04}"));
        let puts: Vec<_> = (0..5000).map(|n| format!(r#"{{"requestPut": {{"key": "{}"}}}}"#, key(n))).collect();
        post(port, "/v3/kv/txn", &format!(r#"{{"success": [{}]}}"#, puts.join(",")), None);
    }
    let present = |store: &Etcd| store.count("/many/");
    let deadline = Instant::now() + Duration::from_secs(60);
    while present(&store) < 115_000 {
        assert!(Instant::now() < deadline, "{} are known", present(&store));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut watch = store.watch("/", store.revision()).await.unwrap();
    let (start, end) = (encode("/f/many/".into()), encode("/f/many0".into()));
    post(port, "/v3/kv/deleterange", &format!(r#"{{"key": "{start}", "range_end": "{end}"}}"#), None);
    while present(&store) > 0 {
        assert!(Instant::now() < deadline, "{} are known", present(&store));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = async { while !matches!(watch.next().await, Some(Err(StoreError::Compacted { .. })) | None) {} };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the watch ends");
    let epoch = store.epoch();
    // It goes on from there.
    let last = done(&store, put("/after", Condition::Absent, "")).await;
    assert_eq!(store.get("/after").await.unwrap().unwrap().mod_revision, last);
    assert_eq!(store.range(range("/")).await.unwrap().items.len(), 2);
    assert_eq!(store.epoch(), epoch, "nothing was read again");
}

#[tokio::test]
async fn with_a_password() {
    let cluster = Cluster::single();
    let port = cluster.members[0].client_port;
    post(port, "/v3/auth/user/add", r#"{"name": "root", "password": "secret"}"#, None);
    post(port, "/v3/auth/role/add", r#"{"name": "root"}"#, None);
    post(port, "/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#, None);
    post(port, "/v3/auth/enable", "{}", None);
    let as_user = |password: &str| Options {
        credentials: Some(Credentials { user: "root".into(), password: password.into() }),
        ..cluster.options("/f")
    };
    let store = Etcd::connect(&as_user("secret")).await.unwrap();
    done(&store, put("/a", Condition::Absent, "")).await;
    let wrong = Etcd::connect(&as_user("wrong")).await.err().unwrap().to_string();
    assert!(wrong.contains("authentication failed") && !wrong.contains("secret"), "{wrong}");
    assert!(!wrong.contains("running") && wrong.matches("127.0.0.1").count() == 2, "{wrong}");
    let without = Etcd::connect(&cluster.options("/f")).await.err().unwrap().to_string();
    assert!(without.ends_with("; authentication is on: give it credentials"), "{without}");
}

#[tokio::test]
async fn who_is_not_there_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = Options {
        servers: vec![format!("http://127.0.0.1:{port}")],
        prefix: "/f".into(),
        ca_file: None,
        identity: None,
        credentials: None,
    };
    let error = Etcd::connect(&options).await.err().unwrap().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("refused") && !error.contains('\n'), "{error}");
    assert!(error.contains("is it running"), "{error}");
}
