//! Owners, quotas, namespaces and service accounts with the real kubectl against the real binary.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::common::{Dev, said, until};

const TEAM: &str = "root:team";

fn start(directory: &Path, extra: &[&str]) -> Dev {
    let dev = Dev::start(&directory.join("data"), extra);
    dev.workspace("root", "team");
    dev
}

/// Creates a ConfigMap in `default` with these owners and finalizers.
fn map(dev: &Dev, name: &str, owners: &[&str], finalizers: &[&str]) {
    let owner = |owner: &&str| {
        let uid = dev.kubectl_ok(TEAM, &["get", "cm", owner, "-o", "jsonpath={.metadata.uid}"]);
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": true})
    };
    let owners: Vec<Value> = owners.iter().map(owner).collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": name, "ownerReferences": owners, "finalizers": finalizers}});
    let args = ["create", "-f", "-"];
    said(&dev.kubectl_with(TEAM, &args, &object.to_string()), &args);
}

fn is_gone(dev: &Dev, what: &[&str]) {
    let args = [&["get", "--ignore-not-found", "-o", "name"], what].concat();
    until(&format!("{what:?} goes"), || dev.kubectl_ok(TEAM, &args).is_empty().then_some(()));
}

fn refusal(dev: &Dev, args: &[&str]) -> String {
    let output = dev.kubectl(TEAM, args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn objects_go_with_their_owners_as_cascade_says() {
    let directory = tempfile::tempdir().unwrap();
    let dev = start(directory.path(), &[]);
    map(&dev, "owner", &[], &[]);
    map(&dev, "child", &["owner"], &[]);
    map(&dev, "grandchild", &["child"], &[]);
    dev.kubectl_ok(TEAM, &["delete", "cm", "owner"]);
    is_gone(&dev, &["cm", "child"]);
    is_gone(&dev, &["cm", "grandchild"]);

    // `--wait` (the default) returns when the owner is gone, and by then so are those that blocked it.
    map(&dev, "owner", &[], &[]);
    map(&dev, "child", &["owner"], &[]);
    map(&dev, "grandchild", &["child"], &[]);
    dev.kubectl_ok(TEAM, &["delete", "cm", "owner", "--cascade=foreground", "--timeout=60s"]);
    let left = dev.kubectl_ok(TEAM, &["get", "cm", "-o", "name"]);
    assert!(!left.contains("child"), "{left}");

    map(&dev, "owner", &[], &[]);
    map(&dev, "child", &["owner"], &[]);
    dev.kubectl_ok(TEAM, &["delete", "cm", "owner", "--cascade=orphan", "--timeout=60s"]);
    let child = dev.kubectl_ok(TEAM, &["get", "cm", "child", "-o", "jsonpath={.metadata.ownerReferences}"]);
    assert_eq!(child, "");
    assert_eq!(dev.interrupt(), Some(0));
}

#[test]
fn a_quota_holds_and_says_what_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let dev = start(directory.path(), &[]);
    dev.kubectl_ok(TEAM, &["create", "quota", "q", "--hard=configmaps=2,count/secrets=1"]);
    for name in ["a", "b"] {
        dev.kubectl_ok(TEAM, &["create", "cm", name]);
    }
    let refused = refusal(&dev, &["create", "cm", "c"]);
    let want = "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2";
    assert!(refused.contains(want), "{refused}");
    let described = dev.kubectl_ok(TEAM, &["describe", "quota", "q"]);
    let used: Vec<Vec<&str>> = described.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(used.contains(&vec!["configmaps", "2", "2"]), "{described}");
    let table = dev.kubectl_ok(TEAM, &["get", "quota", "q", "--no-headers"]);
    assert!(table.contains("configmaps: 2/2, count/secrets: 0/1"), "{table}");
    dev.kubectl_ok(TEAM, &["delete", "cm", "a"]);
    let used = ["get", "quota", "q", "-o", "jsonpath={.status.used.configmaps}"];
    until("the quota is credited", || (dev.kubectl_ok(TEAM, &used) == "1").then_some(()));
    dev.kubectl_ok(TEAM, &["create", "cm", "c"]);
    // It limits one namespace of one workspace.
    dev.kubectl_ok(TEAM, &["create", "ns", "other"]);
    for name in ["a", "b", "c"] {
        dev.kubectl_ok(TEAM, &["create", "cm", name, "-n", "other"]);
    }
    assert_eq!(dev.interrupt(), Some(0));
}

#[test]
fn a_namespace_says_what_it_waits_for_and_goes_when_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let dev = start(directory.path(), &[]);
    dev.kubectl_ok(TEAM, &["create", "ns", "shop"]);
    let account = ["get", "sa", "default", "-n", "shop", "--ignore-not-found", "-o", "name"];
    until("the service account", || (dev.kubectl_ok(TEAM, &account) == "serviceaccount/default\n").then_some(()));
    dev.kubectl_ok(TEAM, &["create", "cm", "held", "-n", "shop"]);
    let hold = r#"{"metadata":{"finalizers":["test.dev/hold"]}}"#;
    dev.kubectl_ok(TEAM, &["patch", "cm", "held", "-n", "shop", "--type=merge", "-p", hold]);
    dev.kubectl_ok(TEAM, &["delete", "ns", "shop", "--wait=false"]);
    let conditions = until("the conditions", || {
        let namespace: Value =
            serde_json::from_str(&dev.kubectl_ok(TEAM, &["get", "ns", "shop", "-o", "json"])).unwrap();
        assert_eq!(namespace["status"]["phase"], "Terminating");
        namespace["status"]["conditions"].as_array().cloned()
    });
    let said: Vec<(&str, &str)> =
        conditions.iter().map(|c| (c["status"].as_str().unwrap(), c["message"].as_str().unwrap())).collect();
    for want in [
        ("True", "Some resources are remaining: configmaps. has 1 resource instances"),
        ("True", "Some content in the namespace has finalizers remaining: test.dev/hold in 1 resource instances"),
        ("False", "All resources successfully discovered"),
    ] {
        assert!(said.contains(&want), "{said:?}");
    }
    let refused = refusal(&dev, &["create", "cm", "late", "-n", "shop"]);
    assert!(refused.contains("because it is being terminated"), "{refused}");
    dev.kubectl_ok(
        TEAM,
        &["patch", "cm", "held", "-n", "shop", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#],
    );
    is_gone(&dev, &["ns", "shop"]);
    assert_eq!(dev.interrupt(), Some(0));
}

/// What the bearer of a token gets in a cluster.
async fn with_token(dev: &Dev, token: &str, cluster: &str, method: &str, path: &str) -> (u16, Value) {
    let authority = fs::read(dev.data_dir.join("ca.crt")).unwrap();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&authority).unwrap()])
        .build()
        .unwrap();
    let url = format!("{}/clusters/{cluster}{path}", dev.gateway);
    let request = client.request(method.parse().unwrap(), url).bearer_auth(token);
    let request = if method == "POST" { request.body("{}") } else { request };
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

#[test]
fn a_token_is_its_service_account_in_its_workspace_for_as_long_as_it_exists() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("gateway.yaml");
    let text = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nauthentication: { anonymous: true }\n";
    fs::write(&config, text).unwrap();
    let dev = start(directory.path(), &["--config", config.to_str().unwrap()]);
    dev.workspace("root", "other");
    dev.kubectl_ok(TEAM, &["create", "sa", "bot"]);
    let token = dev.kubectl_ok(TEAM, &["create", "token", "bot", "--duration=20m"]);
    let token = token.trim();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask =
        |cluster: &str, method: &str, path: &str| runtime.block_on(with_token(&dev, token, cluster, method, path));

    let (code, who) = ask(TEAM, "POST", WHO);
    assert_eq!(code, 201, "{who}");
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:bot");
    let groups = json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    let (_, stranger) = ask("root:other", "POST", WHO);
    let name = stranger["status"]["userInfo"]["username"].as_str().unwrap().to_owned();
    assert!(name.starts_with("system:kcp:serviceaccount:") && name.ends_with(":default:bot"), "{name}");
    assert_eq!(stranger["status"]["userInfo"]["groups"], json!(["system:authenticated"]));
    // Known, but allowed nothing.
    let (code, refused) = ask(TEAM, "GET", "/api/v1/namespaces/default/configmaps");
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("User \"system:serviceaccount:default:bot\" cannot list"));
    assert_eq!(ask(TEAM, "GET", "/apis").0, 200);

    // Whoever it is shown to can ask, or look the key up.
    let review = |audience: &str| {
        let spec = json!({"token": token, "audiences": [audience]});
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        // `--raw` is a path of the server's, not of the workspace's.
        let args = ["create", "--raw", "/clusters/root:team/apis/authentication.k8s.io/v1/tokenreviews", "-f", "-"];
        let answer: Value =
            serde_json::from_str(&said(&dev.kubectl_with(TEAM, &args, &review.to_string()), &args)).unwrap();
        answer["status"].clone()
    };
    let good = review(&dev.gateway);
    assert_eq!((&good["authenticated"], &good["user"]["uid"]), (&json!(true), &user["uid"]));
    assert_eq!(review("somebody-else").get("authenticated"), None);
    let (_, issuer) = ask(TEAM, "GET", "/.well-known/openid-configuration");
    assert_eq!(
        (&issuer["issuer"], &issuer["jwks_uri"]),
        (&json!(dev.gateway), &json!(format!("{}/openid/v1/jwks", dev.gateway)))
    );
    assert_eq!(ask(TEAM, "GET", "/openid/v1/jwks").1["keys"][0]["alg"], "ES256");

    let short = refusal(&dev, &["create", "token", "bot", "--duration=1m"]);
    assert!(short.contains("may not specify a duration less than 10 minutes"), "{short}");
    assert!(refusal(&dev, &["create", "token", "nobody"]).contains("serviceaccounts \"nobody\" not found"));

    // A token that is bound to a secret dies with it; all die with their account, even if there is a new one.
    dev.kubectl_ok(TEAM, &["create", "secret", "generic", "tie"]);
    let bound =
        dev.kubectl_ok(TEAM, &["create", "token", "bot", "--bound-object-kind=Secret", "--bound-object-name=tie"]);
    let is_good = |token: &str| runtime.block_on(with_token(&dev, token.trim(), TEAM, "POST", WHO)).0 == 201;
    assert!(is_good(&bound) && is_good(token));
    dev.kubectl_ok(TEAM, &["delete", "secret", "tie"]);
    assert!(!is_good(&bound) && is_good(token));
    dev.kubectl_ok(TEAM, &["delete", "sa", "bot"]);
    dev.kubectl_ok(TEAM, &["create", "sa", "bot"]);
    assert!(!is_good(token));
    let (code, refused) = ask(TEAM, "POST", WHO);
    assert_eq!((code, &refused["reason"]), (401, &json!("Unauthorized")));
    assert_eq!(dev.interrupt(), Some(0));
}
