//! Bad input of every kind is answered with one clear line or Status.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
};

use crate::common::Dev;
use reqwest::Method;
use serde_json::Value;

/// Runs `fairgate` to its end.
fn fairgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairgate")).args(args).output().unwrap()
}

/// Insists that it failed with this code and one line on standard error that names what is wrong.
fn refused(output: &Output, code: i32, expected: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "more than one line:\n{text}");
    for expected in expected {
        assert!(text.contains(expected), "{expected:?} is missing in {text:?}");
    }
}

fn in_dir(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

#[test]
fn a_wrong_start_ends_with_one_line_and_the_right_code() {
    let directory = tempfile::tempdir().unwrap();
    let data = in_dir(directory.path(), "data");
    let dev = |extra: &[&str]| {
        let mut args = vec!["dev", "--data-dir", &data, "--port", "0", "--admin-port", "0"];
        args.extend(extra);
        fairgate(&args)
    };
    // A port in use.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&fairgate(&["dev", "--data-dir", &data, "--port", &port, "--admin-port", "0"]), 1, &[&port, "--port"]);
    refused(
        &fairgate(&["dev", "--data-dir", &data, "--port", "0", "--admin-port", &port]),
        1,
        &[&port, "--admin-port"],
    );
    // A data directory that cannot be written: its parent is a file.
    let file = in_dir(directory.path(), "file");
    std::fs::write(&file, "").unwrap();
    let below = format!("{file}/data");
    refused(&fairgate(&["dev", "--data-dir", &below, "--port", "0", "--admin-port", "0"]), 1, &[&below]);
    // Configuration files.
    let config = in_dir(directory.path(), "gateway.yaml");
    refused(&dev(&["--config", &config]), 64, &[&config, "No such file"]);
    std::fs::write(&config, "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nworkerz: 3\n").unwrap();
    refused(&dev(&["--config", &config]), 64, &[&config, "3", "workerz"]);
    std::fs::write(&config, "a: [b\n").unwrap();
    refused(&dev(&["--config", &config]), 64, &[&config]);
    refused(&fairgate(&["serve", "--config", &config]), 64, &[&config]);
}

#[test]
fn a_damaged_database_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().display().to_string();
    let dev = Dev::start(directory.path(), &[]);
    assert_eq!(dev.interrupt(), Some(0));
    let store = directory.path().join("store.db");
    std::fs::write(&store, "this is no database, and much longer than a header of one would be: ".repeat(100)).unwrap();
    let before = std::fs::read(&store).unwrap();
    let kubeconfig = directory.path().join("admin.kubeconfig");
    std::fs::write(&kubeconfig, "of the one that runs").unwrap();
    refused(&fairgate(&["dev", "--data-dir", &data, "--port", "0", "--admin-port", "0"]), 1, &["store.db"]);
    assert_eq!(std::fs::read_to_string(&kubeconfig).unwrap(), "of the one that runs");
    assert_eq!(std::fs::read(&store).unwrap(), before);
}

#[test]
fn two_processes_do_not_share_a_data_directory() {
    let directory = tempfile::tempdir().unwrap();
    let _dev = Dev::start(directory.path(), &[]);
    let data = directory.path().display().to_string();
    refused(&fairgate(&["dev", "--data-dir", &data, "--port", "0", "--admin-port", "0"]), 1, &["store.db"]);
}

/// One raw request on a connection of its own; the status code and the body.
fn raw(dev: &Dev, request: &str) -> String {
    let address = dev.admin.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[tokio::test]
async fn malformed_requests_are_answered_with_a_status() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    let client = dev.client();
    let cases: &[(Method, &str, &str, u16, &str)] = &[
        (Method::GET, "/clusters/Root/api/v1/namespaces", "", 403, "Root"),
        (Method::GET, "/clusters/root%2Fapi/v1/namespaces", "", 400, "root"),
        (Method::GET, "/clusters/root::a/api/v1/namespaces", "", 403, "root::a"),
        (Method::GET, "/clusters/nobody/api/v1/namespaces", "", 403, "workspace access not permitted"),
        (Method::GET, "/clusters/root/api/v1/nothings", "", 404, "could not find the requested resource"),
        (Method::GET, "/clusters/root/api/v1/namespaces/none", "", 404, "namespaces \"none\" not found"),
        (Method::PUT, "/clusters/root/api/v1/namespaces", "{}", 405, "does not allow this method"),
        (Method::POST, "/clusters/*/api/v1/configmaps", "{}", 405, "`*`"),
        (Method::POST, "/clusters/root/api/v1/namespaces", "{", 400, ""),
        (Method::POST, "/clusters/root/api/v1/namespaces", "", 400, ""),
        (Method::POST, "/clusters/root/api/v1/namespaces", r#"{"metadata":{"name":"A_b"}}"#, 422, "A_b"),
        (Method::GET, "/clusters/root/api/v1/namespaces?limit=x", "", 400, "x"),
        (Method::GET, "/clusters/root/api/v1/namespaces?labelSelector=a%3D%3D%3Db", "", 400, ""),
        (Method::GET, "/clusters/root/api/v1/namespaces?continue=nonsense", "", 400, "continue"),
    ];
    for (method, path, body, code, message) in cases {
        let url = format!("{}{path}", dev.gateway);
        let answer = client
            .request(method.clone(), &url)
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert_eq!(status, *code, "{method} {path}: {text}");
        let parsed: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{method} {path}: {e}: {text}"));
        assert_eq!((&parsed["kind"], &parsed["code"]), (&Value::from("Status"), &Value::from(*code)), "{text}");
        assert!(parsed["message"].as_str().unwrap().contains(message), "{method} {path}: {text}");
    }
    // kcp answers this one as plain text.
    let metrics = client.get(format!("{}/clusters/root/metrics", dev.gateway)).send().await.unwrap();
    assert_eq!(metrics.status(), 501);
    assert!(metrics.text().await.unwrap().contains("not available at workspace scope"));
    let unsupported = client
        .post(format!("{}/clusters/root/api/v1/namespaces", dev.gateway))
        .header("content-type", "application/x-tar")
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(unsupported.status(), 415);
    let large = client
        .post(format!("{}/clusters/root/api/v1/namespaces", dev.gateway))
        .header("content-type", "application/json")
        .body(vec![b' '; 4 << 20])
        .send()
        .await;
    // The answer may come before the body has been sent, which some clients report as an error of their own.
    assert!(large.is_err() || large.unwrap().status() == 413);
    assert!(raw(&dev, "GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(raw(&dev, "POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").starts_with("HTTP/1.1 405"));
}

/// A file is checked without a start, with what it names; and neither a check nor a start minds that nobody reads on.
#[test]
fn a_configuration_is_checked_without_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let config = in_dir(directory.path(), "gateway.yaml");
    let good = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nlisten: { address: \"127.0.0.1:0\" }\n\
                authentication: { anonymous: true }\nshards:\n- { name: root, url: \"http://127.0.0.1:1\", seats: 5 }\n";
    let check = |text: &str| {
        std::fs::write(&config, text).unwrap();
        fairgate(&["serve", "--check", "--config", &config])
    };
    let valid = check(&format!("{good}accessLog: {{ file: a.log }}\n"));
    assert_eq!(valid.status.code(), Some(0), "{}", String::from_utf8_lossy(&valid.stderr));
    assert!(!directory.path().join("a.log").exists(), "nothing is made");
    refused(&check(&format!("{good}accessLog: {{ file: none/a.log }}\n")), 64, &["accessLog.file", "none/a.log"]);
    refused(&check(&good.replace("seats: 5", "seats: 0")), 64, &["shards[0].seats", ":6:"]);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    std::fs::write(&config, good).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_fairgate"))
        .args(["serve", "--check", "--config", &config])
        .stdout(full())
        .stderr(full())
        .env("FAIRGATE_LOG", "debug")
        .status();
    assert_eq!(checked.unwrap().code(), Some(0));
}
