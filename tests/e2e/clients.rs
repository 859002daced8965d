//! Sessions of several versions of kubectl and helm through the gateway, each in a workspace of its own.
//!
//! `cargo test --test e2e clients -- --nocapture` prints which command does what in which version.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use crate::common::{Dev, tool};

/// The first validates and explains by OpenAPI v2, the helm of the last is version 4, which applies on the server.
const VERSIONS: [&str; 4] = ["1.25", "1.29", "1.32", "1.35"];

const APPLIED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: applied }\ndata: { a: '1' }\n";
const APPLIED_AGAIN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: applied }\ndata: { b: '2' }\n";
const OWNED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: owned }\ndata: { a: '1' }\n";
const OWNED_AGAIN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: owned }\ndata: { a: '2' }\n";
const UNKNOWN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: unknown }\nbogus: { a: '2' }\n";
const REPLACED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: made }\ndata: { replaced: 'yes' }\n";

const CHART: [(&str, &str); 3] = [
    ("Chart.yaml", "apiVersion: v2\nname: settings\nversion: 0.1.0\n"),
    ("values.yaml", "colour: red\n"),
    (
        "templates/all.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: '{{ .Release.Name }}-settings' }\n\
         data: { colour: '{{ .Values.colour }}' }\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: { name: '{{ .Release.Name }}-key' }\n\
         stringData: { colour: '{{ .Values.colour }}' }\n",
    ),
];

/// One version at work in its workspace, and how each of its commands went.
struct Session<'d> {
    dev: &'d Dev,
    version: &'static str,
    workspace: String,
    /// Command, and what went wrong with it.
    results: Vec<(String, Option<String>)>,
}

impl<'d> Session<'d> {
    fn new(dev: &'d Dev, version: &'static str) -> Self {
        let name = format!("v{}", version.replace('.', "-"));
        dev.workspace("root", &name);
        Self { dev, version, workspace: format!("root:{name}"), results: Vec::new() }
    }

    /// Runs a command; its output must contain `expected`.
    fn kubectl(&mut self, args: &[&str], input: &str, expected: &[&str]) {
        self.kubectl_ends(0, args, input, expected);
    }

    /// The same for one that ends with this exit code; what it says on its standard error counts too.
    fn kubectl_ends(&mut self, code: i32, args: &[&str], input: &str, expected: &[&str]) {
        let command = self.dev.command_of(&tool(self.version, "kubectl"), &self.workspace, args);
        self.judge(&format!("kubectl {}", title(args)), command, input, code, expected);
    }

    fn helm(&mut self, chart: &Path, args: &[&str], expected: &[&str]) {
        let mut command = Command::new(tool(self.version, "helm"));
        command.args(args).current_dir(chart).stdout(Stdio::piped()).stderr(Stdio::piped());
        let home = self.dev.data_dir.join(format!("helm-{}", self.version));
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"] {
            command.env(variable, &home);
        }
        command.env("KUBECONFIG", self.dev.data_dir.join("admin.kubeconfig"));
        command.env("HELM_KUBEAPISERVER", format!("{}/clusters/{}", self.dev.gateway, self.workspace));
        self.judge(&format!("helm {}", title(args)), command, "", 0, expected);
    }

    fn judge(&mut self, title: &str, mut command: Command, input: &str, wanted: i32, expected: &[&str]) {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let is_told = |text: &str| out.contains(text) || (wanted != 0 && err.contains(text));
        let missing: Vec<_> = expected.iter().filter(|text| !is_told(text)).collect();
        let wrong = match (output.status.code(), &missing[..]) {
            (Some(code), []) if code == wanted => None,
            (code, _) => Some(format!("exit code {code:?}, without {missing:?}\n{out}{err}")),
        };
        self.results.push((title.to_owned(), wrong));
    }

    /// Everything there is to try.
    fn run(mut self, chart: &Path) -> Vec<(String, Option<String>)> {
        self.kubectl(&["version"], "", &["fairgate"]);
        self.kubectl(&["api-versions"], "", &["tenancy.kcp.io/v1alpha1\n", "v1\n"]);
        self.kubectl(&["api-resources"], "", &["configmaps", "workspaces"]);
        self.writes_and_reads();
        self.watch();
        self.changes();
        self.server_side();
        self.reviews();
        self.removals();
        self.release(chart);
        self.kubectl(&["explain", "configmap.data"], "", &["ConfigMap", "map[string]string", "configuration data"]);
        self.kubectl(&["explain", "flowschema.spec.rules.subjects"], "", &["serviceAccount", "kind"]);
        self.kubectl(&["explain", "workspaces"], "", &["tenancy.kcp.io", "spec", "is a place of its own"]);
        self.results
    }

    fn writes_and_reads(&mut self) {
        self.kubectl(&["create", "configmap", "made", "--from-literal=k=v"], "", &["configmap/made created"]);
        self.kubectl(&["create", "secret", "generic", "key", "--from-literal=k=v"], "", &["secret/key created"]);
        self.kubectl(&["apply", "-f", "-"], APPLIED, &["configmap/applied created"]);
        self.kubectl(&["apply", "-f", "-"], APPLIED, &["configmap/applied unchanged"]);
        self.kubectl(&["apply", "-f", "-"], APPLIED_AGAIN, &["configmap/applied configured"]);
        self.kubectl(&["get", "cm", "applied", "-o", "jsonpath={.data}"], "", &[r#"{"b":"2"}"#]);
        self.kubectl(&["get", "configmaps"], "", &["NAME", "DATA", "AGE", "made", "applied"]);
        self.kubectl(&["get", "cm,secrets", "-o", "wide"], "", &["configmap/made", "secret/key", "Opaque"]);
        self.kubectl(&["get", "cm", "made", "-o", "yaml"], "", &["\n  k: v\n", "kind: ConfigMap"]);
        self.kubectl(&["get", "cm", "-o", "json"], "", &[r#""kind": "List""#, r#""name": "made""#]);
        self.kubectl(&["get", "cm", "--chunk-size=1", "-o", "name"], "", &["configmap/made", "configmap/applied"]);
        self.kubectl(&["get", "cm", "-A", "--sort-by=.metadata.name"], "", &["default", "made"]);
        self.kubectl(&["describe", "cm", "made"], "", &["Name:         made", "Data\n===="]);
    }

    /// A watch sees what comes while it is open, and no other workspace.
    fn watch(&mut self) {
        let args = ["get", "configmaps", "--watch", "--output-watch-events", "--no-headers"];
        let mut watching = self.dev.command_of(&tool(self.version, "kubectl"), &self.workspace, &args);
        let mut watching = watching.stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map_while(Result::ok);
        self.kubectl(&["create", "cm", "seen"], "", &["configmap/seen created"]);
        self.kubectl(&["delete", "cm", "seen"], "", &["deleted"]);
        let seen: Vec<_> = lines
            .by_ref()
            .filter(|line| line.contains("seen"))
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .take(2)
            .collect();
        watching.kill().unwrap();
        watching.wait().unwrap();
        let wrong = (seen != ["ADDED", "DELETED"]).then(|| format!("{seen:?}"));
        self.results.push(("kubectl get --watch".into(), wrong));
    }

    fn changes(&mut self) {
        self.kubectl(&["label", "cm", "made", "tier=gold"], "", &["labeled"]);
        self.kubectl(&["get", "cm", "-l", "tier=gold", "-o", "name"], "", &["configmap/made"]);
        self.kubectl(&["annotate", "cm", "made", "note=x"], "", &["annotated"]);
        self.kubectl(&["patch", "cm", "made", "-p", r#"{"data":{"s":"1"}}"#], "", &["patched"]);
        self.kubectl(&["patch", "cm", "made", "--type=merge", "-p", r#"{"data":{"m":"1"}}"#], "", &["patched"]);
        let json = r#"[{"op":"add","path":"/data/j","value":"1"}]"#;
        self.kubectl(&["patch", "cm", "made", "--type=json", "-p", json], "", &["patched"]);
        let data = r#"{"j":"1","k":"v","m":"1","s":"1"}"#;
        self.kubectl(&["get", "cm", "made", "-o", "jsonpath={.data}"], "", &[data]);
        self.kubectl(&["replace", "-f", "-"], REPLACED, &["configmap/made replaced"]);
        self.kubectl(&["get", "cm", "made", "-o", "jsonpath={.data}"], "", &[r#"{"replaced":"yes"}"#]);
        let wait = ["wait", "cm/made", "--for=jsonpath={.data.replaced}=yes", "--timeout=60s"];
        self.kubectl(&wait, "", &["condition met"]);
    }

    /// Apply on the server: two managers, their conflict, and the way from client-side apply.
    fn server_side(&mut self) {
        let apply = |more: &[&'static str]| [&["apply", "--server-side", "-f", "-"], more].concat();
        let done = ["serverside-applied"];
        self.kubectl(&apply(&[]), OWNED, &done);
        self.kubectl(&apply(&["--dry-run=server"]), OWNED_AGAIN, &done);
        self.kubectl(&apply(&[]), OWNED, &done);
        let managers =
            ["get", "cm", "owned", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}"];
        self.kubectl(&managers, "", &["kubectl"]);
        let conflict = ["Apply failed with 1 conflict: conflict with \"kubectl\": .data.a"];
        self.kubectl_ends(1, &apply(&["--field-manager=other"]), OWNED_AGAIN, &conflict);
        self.kubectl(&apply(&["--field-manager=other", "--force-conflicts"]), OWNED_AGAIN, &done);
        self.kubectl(&managers, "", &["other"]);
        // What client-side apply owns passes to kubectl's server-side apply, with what it no longer wants; before 1.26
        // kubectl did not see to that.
        self.kubectl(&apply(&[]), APPLIED, &done);
        let kept = if self.version == "1.25" { r#"{"a":"1","b":"2"}"# } else { r#"{"a":"1"}"# };
        self.kubectl(&["get", "cm", "applied", "-o", "jsonpath={.data}"], "", &[kept]);
        self.kubectl(&["diff", "-f", "-"], APPLIED, &[]);
        self.kubectl_ends(1, &["diff", "-f", "-"], APPLIED_AGAIN, &["-  a: \"1\""]);
        self.kubectl_ends(1, &["diff", "--server-side", "-f", "-"], APPLIED_AGAIN, &["-  a: \"1\""]);
        self.kubectl_ends(1, &["apply", "-f", "-"], UNKNOWN, &["bogus"]);
    }

    /// Kinds that are only created: no PATCH of theirs says what it knows, and kubectl looks among custom resources.
    fn reviews(&mut self) {
        let verbs = r#"{"verb":"get","resource":"configmaps","namespace":"default"}"#;
        for (kind, place, spec, told) in [
            ("SubjectAccessReview", "", format!(r#"{{"user":"jane","resourceAttributes":{verbs}}}"#), "allowed: false"),
            (
                "LocalSubjectAccessReview",
                r#","metadata":{"namespace":"default"}"#,
                format!(r#"{{"user":"jane","resourceAttributes":{verbs}}}"#),
                "allowed: false",
            ),
            ("SelfSubjectAccessReview", "", format!(r#"{{"resourceAttributes":{verbs}}}"#), "allowed: true"),
            ("SelfSubjectRulesReview", "", r#"{"namespace":"default"}"#.into(), "incomplete: false"),
            ("SelfSubjectReview", "", String::new(), "username:"),
            ("TokenReview", "", r#"{"token":"x"}"#.into(), "invalid bearer token"),
        ] {
            let group = if told == "username:" || kind == "TokenReview" { "authentication" } else { "authorization" };
            let spec = if spec.is_empty() { spec } else { format!(r#","spec":{spec}"#) };
            let review = format!(r#"{{"kind":"{kind}","apiVersion":"{group}.k8s.io/v1"{place}{spec}}}"#);
            self.kubectl(&["create", "-o", "yaml", "-f", "-"], &review, &[told]);
            let wrong = format!(r#"{{"bogus":1,{}"#, &review[1..]);
            self.kubectl_ends(1, &["create", "-o", "yaml", "-f", "-"], &wrong, &["bogus"]);
        }
    }

    fn removals(&mut self) {
        self.kubectl(&["create", "namespace", "shop"], "", &["created"]);
        self.kubectl(&["create", "cm", "inside", "-n", "shop"], "", &["created"]);
        self.kubectl(&["delete", "namespace", "shop", "--timeout=60s"], "", &["deleted"]);
        self.kubectl(&["delete", "cm", "applied", "--wait=false"], "", &["deleted"]);
        self.kubectl(&["wait", "--for=delete", "cm/applied", "--timeout=60s"], "", &[]);
        self.kubectl(&["delete", "cm", "--all"], "", &["made"]);
    }

    /// The life of a release of configmaps and secrets.
    fn release(&mut self, chart: &Path) {
        let colour = ["get", "cm", "r-settings", "-o", "jsonpath={.data.colour}"];
        self.helm(chart, &["install", "r", "."], &["STATUS: deployed"]);
        self.helm(chart, &["list"], &["settings-0.1.0", "deployed"]);
        self.helm(chart, &["status", "r"], &["STATUS: deployed", "REVISION: 1"]);
        self.helm(chart, &["upgrade", "r", ".", "--set", "colour=blue"], &["has been upgraded"]);
        self.kubectl(&colour, "", &["blue"]);
        self.helm(chart, &["history", "r"], &["superseded", "Upgrade complete"]);
        self.helm(chart, &["rollback", "r", "1"], &["Rollback was a success"]);
        self.kubectl(&colour, "", &["red"]);
        self.helm(chart, &["get", "manifest", "r"], &["kind: Secret"]);
        self.helm(
            chart,
            &["upgrade", "--install", "r", ".", "--set", "colour=green", "--wait"],
            &["has been upgraded"],
        );
        self.kubectl(&colour, "", &["green"]);
        self.helm(chart, &["uninstall", "r"], &["uninstalled"]);
        self.helm(chart, &["install", "n", ".", "-n", "new", "--create-namespace"], &["STATUS: deployed"]);
        self.helm(chart, &["uninstall", "n", "-n", "new"], &["uninstalled"]);
        self.helm(chart, &["template", "t", ".", "--validate"], &["name: 't-settings'"]);
        self.kubectl(&["wait", "--for=delete", "cm/r-settings", "secret/r-key", "--timeout=60s"], "", &[]);
    }
}

/// What of a command says which one it is: without patches and the like.
fn title(args: &[&str]) -> String {
    let told = args.iter().filter(|arg| !arg.starts_with(['{', '[']) && **arg != "-");
    told.copied().collect::<Vec<_>>().join(" ")
}

/// Command by version.
fn table(results: &[Vec<(String, Option<String>)>]) -> String {
    let mut text = format!("\n{:72}", "");
    VERSIONS.iter().for_each(|version| write!(text, "{version:>8}").unwrap());
    for (row, (command, _)) in results.last().unwrap().iter().enumerate() {
        write!(text, "\n{command:72}").unwrap();
        for version in results {
            let cell = match version.get(row) {
                None => "-",
                Some((_, None)) => "ok",
                Some((_, Some(_))) => "FAILED",
            };
            write!(text, "{cell:>8}").unwrap();
        }
    }
    text
}

#[test]
fn kubectl_and_helm_of_four_versions() {
    let place = tempfile::tempdir().unwrap();
    let chart = place.path().join("settings");
    std::fs::create_dir_all(chart.join("templates")).unwrap();
    CHART.iter().for_each(|(name, text)| std::fs::write(chart.join(name), text).unwrap());
    let dev = Dev::start(&place.path().join("data"), &[]);
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |version| {
            scope.spawn({
                let (dev, chart) = (&dev, &chart);
                move || Session::new(dev, version).run(chart)
            })
        };
        let running: Vec<_> = VERSIONS.into_iter().map(start).collect();
        running.into_iter().map(|session| session.join().unwrap()).collect()
    });
    println!("{}", table(&results));
    let failed: Vec<_> = VERSIONS
        .iter()
        .zip(&results)
        .flat_map(|(version, results)| results.iter().map(move |result| (version, result)))
        .filter_map(|(version, (command, wrong))| Some(format!("{version}: {command}: {}", wrong.as_ref()?)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(results.iter().all(|version| version.len() == results[0].len()), "each version does everything");
}
