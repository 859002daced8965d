//! Inputs that were made to hurt: nothing panics, and what it costs is bounded by what was sent.
//!
//! Memory is counted by the allocator, work by the number of allocations, so that no clock decides. Lists are long enough
//! that whatever takes the square of their length does not end within anybody's patience.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use allocation_counter::measure;
use apiserver_api::Status;
use apiserver_machinery::{
    ContinueToken, Resource, builtin, decode,
    managed::{self, Applied, Writer},
    meta,
    negotiate::{BodyFormat, PatchType},
    options::FieldValidation,
    patch::Patch,
    selector::{FieldSelector, LabelSelector},
};
use base64::Engine as _;
use serde_json::{Value, json};

/// Bytes of memory for each byte of input, and what everything may take. A parsed value is larger than its text: an item of
/// `[[],[]...` takes 32 bytes for 3, and a patch holds the object, the patch and the result.
const TIMES: u64 = 120;
const BASE: u64 = 4 << 20;
/// What aliases of YAML may add to that.
const REPEATED: u64 = 40 << 20;
/// Allocations for each byte of input.
const WORK: u64 = 20;

const WRITER: Writer<'_> = Writer { manager: "m", subresource: "", now: 1_800_000_000 };

fn resource(plural: &str) -> &'static Resource {
    builtin::all().iter().find(|r| r.plural == plural).unwrap()
}

/// Runs it, and looks at what it took.
fn bounded(what: &str, input: usize, work: impl FnOnce()) {
    let taken = measure(work);
    let input = input as u64;
    let base = if what.starts_with("aliases") { BASE + REPEATED } else { BASE };
    assert!(taken.bytes_max < base + TIMES * input, "{what}: {} bytes of memory for {input}", taken.bytes_max);
    assert!(taken.count_total < BASE + WORK * input, "{what}: {} allocations for {input}", taken.count_total);
}

fn created(resource: &Resource, format: BodyFormat, bytes: &[u8]) -> Result<Value, Status> {
    let (mut object, _) = decode::body(resource, format, bytes)?.validated(resource, FieldValidation::Strict)?;
    meta::prepare_create(resource, &mut object, "n", WRITER.now)?;
    (resource.prepare)(&mut object, None);
    let given = managed::take_entries(&mut object);
    managed::track(resource, None, &mut object, given.as_ref(), WRITER);
    meta::validate(resource, &object, None)?;
    Ok(object)
}

fn patched(resource: &Resource, kind: PatchType, old: &Value, bytes: &[u8]) -> Result<Value, Status> {
    let (new, _) = Patch::parse(kind, bytes)?.apply(resource, old, FieldValidation::Strict)?;
    meta::validate(resource, &new, Some(old))?;
    Ok(new)
}

fn applied(resource: &Resource, live: Option<&Value>, bytes: &[u8]) -> Result<Value, Status> {
    let (config, _) = decode::applied(resource, bytes, FieldValidation::Strict)?;
    managed::apply(resource, live, &Applied { config, force: false }, WRITER)
}

fn numbers(count: usize, item: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(item).collect()
}

const MANY: usize = 20_000;

/// What is small on the wire and huge when it is read.
#[test]
fn bombs() {
    let maps = resource("configmaps");
    let laughs = (1..12).fold(String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"), |text, n| {
        let before = vec![format!("*a{}", n - 1); 10].join(",");
        format!("{text}a{n}: &a{n} [{before}]\n")
    });
    let anchors: String = (0..20_000).map(|n| format!("a{n}: &a{n} x\n")).collect();
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    let cases = [
        ("aliases of aliases", laughs.clone()),
        ("anchors", anchors),
        ("aliases of a long text", format!("a: &a {}\nb: [{}]\n", "x".repeat(50_000), vec!["*a"; 5_000].join(","))),
        ("aliases of aliases of a long text", laughs.replace("&a0 [", &format!("&a0 [{},", "y".repeat(20_000)))),
        ("lists", deep("[", "]")),
        ("open lists", "[".repeat(200_000)),
        ("maps", deep("{\"a\":", "}")),
        ("empty lists", format!("[{}]", vec!["[]"; 100_000].join(","))),
        ("digits", "1".repeat(300_000)),
        ("one long text", format!("\"{}\"", "\\u0000".repeat(50_000))),
        ("dashes", "- ".repeat(100_000)),
        ("documents", "---\n".repeat(50_000)),
        ("tags", "!!a ".repeat(50_000)),
        ("merge keys", format!("a: &a {{b: c}}\nd: {{{}}}", vec!["<<: *a"; 5_000].join(","))),
    ];
    for (what, text) in &cases {
        let bytes = text.as_bytes();
        for format in [BodyFormat::Json, BodyFormat::Yaml] {
            bounded(what, bytes.len(), || drop(created(maps, format, bytes)));
        }
        bounded(what, bytes.len(), || drop(applied(maps, None, bytes)));
        let data =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\nspec:\n  {}", text.replace('\n', "\n  "));
        bounded(what, data.len(), || drop(applied(maps, None, data.as_bytes())));
        for kind in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
            bounded(what, bytes.len(), || drop(patched(maps, kind, &json!({"metadata": {"name": "a"}}), bytes)));
        }
    }
}

/// A patch that is small on the wire and moves megabytes with each operation is refused before it does.
#[test]
fn patches_that_move_too_much() {
    let maps = resource("configmaps");
    let many = |path: &str, from: &str| {
        let mut operations = vec![json!({"op": "add", "path": "/x", "value": vec![0; 100_000]})];
        operations.resize(9_000, json!({"op": "move", "from": from, "path": path}));
        serde_json::to_vec(&operations).unwrap()
    };
    for (path, from) in [("/y", "/x/0"), ("/x/0", "/x/1")] {
        let refused = patched(maps, PatchType::Json, &json!({"metadata": {"name": "a"}}), &many(path, from));
        let refused = format!("{:?}", refused.unwrap_err());
        assert!(refused.contains("moves too much"), "{refused}");
    }
}

/// What it costs to look at an object does not grow with the selector's length times the number of labels.
#[test]
fn long_selectors_on_objects_with_many_labels() {
    let labels = (0..MANY).map(|n| (format!("k{n:05}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    let object = json!({"metadata": {"name": "a", "labels": labels}});
    let joined = |requirement: fn(usize) -> String| (0..1000).map(requirement).collect::<Vec<_>>().join(",");
    for (text, want) in [
        (joined(|n| format!("!a{n}")), true),
        (joined(|n| format!("z{n}!=v")), true),
        (joined(|n| format!("k{:05}", n * 20)), true),
        (joined(|n| format!("k{:05}=v", n * 20)), true),
        (joined(|n| format!("k00000!=a{n}")), true),
        (format!("k00001 notin ({})", (0..10_000).map(|n| format!("a{n}")).collect::<Vec<_>>().join(",")), true),
        (joined(|n| format!("z{n}")), false),
    ] {
        let selector = LabelSelector::parse(&text).unwrap();
        for _ in 0..100 {
            assert_eq!(selector.matches(&object), want, "{text:.60}");
        }
    }
    let refused = LabelSelector::parse(&(0..1001).map(|n| format!("!a{n}")).collect::<Vec<_>>().join(","));
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, 400);
    assert!(refused.message.contains("1001 requirements"), "{}", refused.message);
    assert!(LabelSelector::parse(&vec!["!a"; 20_000].join(",")).is_ok(), "that is one");
}

#[test]
fn long_queries() {
    let maps = resource("configmaps");
    for text in [
        "a,".repeat(30_000),
        format!("a in ({})", "b,".repeat(30_000)),
        format!("a notin ({})", (0..10_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",")),
        "!".repeat(60_000),
        "(".repeat(60_000),
        "metadata.name=a,".repeat(5_000),
        format!("metadata.name={}", "\\,".repeat(30_000)),
        "=".repeat(60_000),
    ] {
        let object = json!({"metadata": {"name": "a", "labels": {"a": "b"}}});
        bounded("labels", text.len(), || {
            drop(LabelSelector::parse(&text).map(|selector| selector.matches(&object)));
        });
        bounded("fields", text.len(), || {
            drop(FieldSelector::parse(maps, &text).map(|selector| selector.matches(&object)));
        });
        bounded("token", text.len(), || drop(ContinueToken::decode(&text, maps, "c", "n")));
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(format!("{{\"v\":\"{text}\",\"start\":\"{text}\"}}"));
        bounded("packed token", token.len(), || drop(ContinueToken::decode(&token, maps, "c", "n")));
    }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap()
    }

    /// Damages bytes in a few places, with pieces that parsers stumble over.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        const PIECES: [&[u8]; 20] = [
            b"{",
            b"}",
            b"[",
            b"]",
            b"\"",
            b":",
            b",",
            b"null",
            b"-1e999",
            b"&a ",
            b"*a",
            b"<<: ",
            b"\n- ",
            b"$patch",
            b"$setElementOrder/",
            b"k8s\0",
            b"\xff\xfe",
            b"\x0a\xff\xff\xff\xff\x0f",
            b"\\ud800",
            b"99999999999999999999",
        ];
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let (at, end) = (self.below(out.len() + 1), self.below(out.len() + 1));
            match self.below(5) {
                0 => out.truncate(at),
                1 => drop(out.splice(at..at, PIECES[self.below(PIECES.len())].iter().copied())),
                2 => {
                    let again = out[at.min(end)..at.max(end)].to_vec();
                    drop(out.splice(at..at, again));
                }
                3 => drop(out.drain(at.min(end)..at.max(end))),
                _ => {
                    if let Some(byte) = out.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
        out
    }
}

/// Bodies and patches of every kind of resource, damaged at random.
#[test]
fn damaged() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let lively = json!({"metadata": {"name": "a", "labels": {"k": "v"}, "finalizers": ["a.dev/x"], "annotations": {"n": "1"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}], "managedFields": [{"manager": "m",
            "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:k": {}}}}]},
        "data": {"k": "djE="}, "spec": {"hard": {"configmaps": "5"}, "limits": [{"type": "Pod", "max": {"cpu": "1"}}],
            "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}]}]}});
    let operations = json!([{"op": "add", "path": "/data/n", "value": {"a": []}}, {"op": "copy", "from": "/metadata",
        "path": "/data/c"}, {"op": "move", "from": "/data/n", "path": "/spec/x"}, {"op": "test", "path": "/a", "value": null}]);
    for resource in builtin::all() {
        let mut object = lively.clone();
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.kind);
        let text = object.to_string();
        let sealed = apiserver_machinery::encode::value(BodyFormat::Protobuf, resource.schema, &object);
        let yaml = apiserver_machinery::encode::value(BodyFormat::Yaml, resource.schema, &object);
        for _ in 0..120 {
            for (format, bytes) in
                [(BodyFormat::Json, text.as_bytes()), (BodyFormat::Yaml, &yaml), (BodyFormat::Protobuf, &sealed)]
            {
                let bytes = dice.damage(bytes);
                bounded("a body", bytes.len(), || drop(created(resource, format, &bytes)));
                bounded("options", bytes.len(), || drop(decode::delete_options(format, &bytes)));
            }
            let bytes = dice.damage(&yaml);
            bounded("an apply", bytes.len(), || drop(applied(resource, Some(&object), &bytes)));
            for kind in [PatchType::Merge, PatchType::Strategic] {
                let bytes = dice.damage(text.as_bytes());
                bounded("a patch", bytes.len(), || drop(patched(resource, kind, &object, &bytes)));
            }
            let bytes = dice.damage(operations.to_string().as_bytes());
            bounded("operations", bytes.len(), || drop(patched(resource, PatchType::Json, &object, &bytes)));
        }
    }
}

#[test]
fn many_of_everything() {
    let maps = resource("configmaps");
    let of = |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    let finalizers = numbers(MANY, |n| json!(format!("a.dev/{n}")));
    let wrong = numbers(MANY, |n| json!(format!("{n}!")));
    let owners = numbers(MANY / 4, |n| json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": n.to_string()}));
    let entries = numbers(MANY / 8, |n| {
        json!({"manager": format!("m{n}"), "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {format!("f:{n}"): {}}}})
    });
    let keys = |key: fn(usize) -> String| -> Value {
        (0..MANY).map(|n| (key(n), json!("v"))).collect::<serde_json::Map<_, _>>().into()
    };
    for (what, object) in [
        ("finalizers", of(json!({"name": "a", "finalizers": finalizers}))),
        ("wrong finalizers", of(json!({"name": "a", "finalizers": wrong}))),
        ("owners", of(json!({"name": "a", "ownerReferences": owners}))),
        ("labels", of(json!({"name": "a", "labels": keys(|n| format!("k{n}"))}))),
        ("wrong labels", of(json!({"name": "a", "labels": keys(|n| format!("-{n}"))}))),
        ("managers", of(json!({"name": "a", "managedFields": entries}))),
        ("wrong keys", json!({"metadata": {"name": "a"}, "data": keys(|n| format!("?{n}"))})),
        ("unknown fields", keys(|n| format!("u{n}"))),
    ] {
        let text = object.to_string();
        bounded(what, text.len(), || drop(created(maps, BodyFormat::Json, text.as_bytes())));
        bounded(&format!("{what} as YAML"), text.len(), || drop(created(maps, BodyFormat::Yaml, text.as_bytes())));
        bounded(&format!("{what} applied"), text.len(), || drop(applied(maps, None, text.as_bytes())));
        bounded(&format!("{what} applied over it"), 2 * text.len(), || {
            drop(applied(maps, Some(&object), text.as_bytes()))
        });
        let patch = text.as_bytes();
        bounded(&format!("{what} merged"), 2 * text.len(), || drop(patched(maps, PatchType::Merge, &object, patch)));
        bounded(&format!("{what} merged strategically"), 2 * text.len(), || {
            drop(patched(maps, PatchType::Strategic, &object, patch))
        });
    }
}

#[test]
fn directives_on_long_lists() {
    let maps = resource("configmaps");
    let finalizers = numbers(MANY, |n| json!(format!("a.dev/{n}")));
    let turned: Vec<Value> = finalizers.iter().rev().cloned().collect();
    let owner = |n: usize| json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": n.to_string()});
    let owners = numbers(MANY / 4, owner);
    let deleted = numbers(MANY / 4, |n| json!({"uid": n.to_string(), "$patch": "delete"}));
    let order = numbers(MANY / 4, |n| json!({"uid": (MANY / 4 - n).to_string()}));
    let old = json!({"metadata": {"name": "a", "finalizers": finalizers, "ownerReferences": owners,
        "deletionTimestamp": "2026-01-02T03:04:05Z"}});
    for (what, metadata) in [
        ("order", json!({"$setElementOrder/finalizers": turned})),
        ("order of new ones", json!({"finalizers": turned, "$setElementOrder/finalizers": turned})),
        ("deletion", json!({"$deleteFromPrimitiveList/finalizers": turned})),
        ("more", json!({"finalizers": numbers(MANY, |n| json!(format!("b.dev/{n}")))})),
        ("by key", json!({"ownerReferences": owners, "$setElementOrder/ownerReferences": order})),
        ("deletion by key", json!({"ownerReferences": deleted})),
        ("retained", json!({"$retainKeys": turned})),
    ] {
        let text = json!({ "metadata": metadata }).to_string();
        let size = text.len() + old.to_string().len();
        bounded(what, size, || drop(patched(maps, PatchType::Strategic, &old, text.as_bytes())));
    }
}

#[test]
fn lists_in_kinds() {
    for (plural, object) in [
        (
            "resourcequotas",
            json!({"metadata": {"name": "q"}, "spec": {"scopes": vec!["BestEffort"; MANY],
                "hard": (0..MANY).map(|n| (format!("r{n}"), json!("1"))).collect::<serde_json::Map<_, _>>()}}),
        ),
        (
            "limitranges",
            json!({"metadata": {"name": "l"}, "spec": {"limits": numbers(MANY, |n| json!({"type": format!("a.dev/{n}")}))}}),
        ),
        (
            "flowschemas",
            json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "p"},
                "rules": numbers(MANY / 10, |n| json!({"subjects": [{"kind": "Odd"}],
                    "resourceRules": [{"verbs": [n.to_string(), "*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]}))}}),
        ),
        (
            "flowschemas",
            json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "p"},
                "rules": [{"subjects": numbers(MANY, |n| json!({"kind": "User", "user": {"name": n.to_string()}})),
                    "resourceRules": [{"verbs": numbers(MANY, |n| json!(n.to_string())), "apiGroups": ["*"],
                        "resources": ["*"], "namespaces": numbers(MANY, |n| json!(format!("-{n}")))}]}]}}),
        ),
        (
            "serviceaccounts",
            json!({"metadata": {"name": "s"}, "secrets": numbers(MANY, |n| json!({"name": n.to_string()}))}),
        ),
        (
            "namespaces",
            json!({"metadata": {"name": "n"}, "spec": {"finalizers": numbers(MANY, |n| json!(n.to_string()))}}),
        ),
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "stringData": (0..MANY).map(|n| (format!("?{n}"), json!("v"))).collect::<serde_json::Map<_, _>>()}),
        ),
    ] {
        let text = object.to_string();
        let resource = resource(plural);
        bounded(plural, text.len(), || drop(created(resource, BodyFormat::Json, text.as_bytes())));
        let mut full = object.clone();
        full["apiVersion"] = json!(resource.api_version());
        full["kind"] = json!(resource.kind);
        let text = full.to_string();
        bounded(&format!("{plural} applied"), text.len() * 2, || {
            drop(applied(resource, Some(&object), text.as_bytes()))
        });
        bounded(&format!("{plural} strategic"), text.len() * 2, || {
            drop(patched(resource, PatchType::Strategic, &object, text.as_bytes()))
        });
    }
}
