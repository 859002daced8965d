//! Whether a command did what it was recorded to do.

use serde_json::Value;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: it was ended by us.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Compares; the output only when more than the code counts.
pub(crate) fn compare(entry: &Value, got: &Ended, only_code: bool) -> Result<(), String> {
    let told = || format!("\n{}{}", got.out, got.err);
    // The recorded server had no tokens to give.
    let wanted = if entry["id"] == "create-token" { Some(0) } else { entry["exit"].as_i64() };
    if wanted != got.code.map(i64::from) {
        return Err(format!("exit code {:?} instead of {}{}", got.code, entry["exit"], told()));
    }
    if only_code {
        return Ok(());
    }
    for (stream, ours) in [("stdout", &got.out), ("stderr", &got.err)] {
        let recorded = entry[stream].as_str().unwrap();
        // Upstream's documentation was not kept, and long texts were cut off.
        let complete = recorded.strip_suffix("...").map_or(recorded, |cut| cut.rsplit_once('\n').map_or("", |c| c.0));
        // Warnings about the skew of versions and the like are the client's own.
        if complete == "<text>\n" || complete == "<text>" || (stream == "stderr" && got.code == Some(0)) {
            continue;
        }
        let ours = without_cluster(ours);
        let mut lines = ours.lines().map(words);
        for line in complete.lines().map(words).filter(|line| !is_volatile(line)) {
            if !lines.any(|ours| is_within(&line, &ours)) {
                return Err(format!("{stream} lacks {:?} in its place{}", line.join(" "), told()));
            }
        }
    }
    Ok(())
}

/// The output of `kubectl describe` as if there were no annotation `kcp.io/cluster`, which every object has here.
fn without_cluster(out: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in out.lines() {
        let is_more = line.starts_with(' ') && line.contains(':');
        if std::mem::take(&mut open) {
            lines.push(format!("Annotations: {}", if is_more { line } else { "<none>" }));
            if is_more {
                continue;
            }
        }
        open = line.starts_with("Annotations:") && line.contains("kcp.io/cluster: ");
        if !open {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// The words of a line, with what differs from run to run made equal.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(masked).collect()
}

fn masked(word: &str) -> String {
    let is_age = word.len() > 1 && word.ends_with(['s', 'm', 'h']) && word.starts_with(|c: char| c.is_ascii_digit());
    if is_age && word.bytes().all(|b| b.is_ascii_digit() || b"smh".contains(&b)) {
        return "<age>".into();
    }
    if let Some(at) = word.find("cmg-") {
        return format!("{}<generated>", word.get(..at).unwrap_or_default());
    }
    // Upper and lower case of hexadecimal digits in groups of 8-4-4-4-12.
    let parts: Vec<&str> = word.split('"').map(|part| if is_uuid(part) { "<uuid>" } else { part }).collect();
    parts.join("\"")
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.matches('-').count() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Whether a line tells only of this run.
fn is_volatile(line: &[String]) -> bool {
    let first = line.first().map_or("", |word| word.trim_matches(['"', ':']));
    line.is_empty() || ["resourceVersion", "creationTimestamp", "uid", "time"].contains(&first)
}

/// Whether the words are among those, in this order.
fn is_within(line: &[String], ours: &[String]) -> bool {
    let mut ours = ours.iter();
    line.iter().all(|word| ours.any(|own| own == word))
}

#[test]
fn annotations() {
    let of = |more: &str| without_cluster(&format!("Name: a\nAnnotations:  kcp.io/cluster: x\n{more}\nData\n"));
    assert_eq!(of("   note: hello"), "Name: a\nAnnotations:    note: hello\nData");
    assert_eq!(of(""), "Name: a\nAnnotations: <none>\n\nData");
}

#[test]
fn lines() {
    let got = |out: &str| Ended { code: Some(0), out: out.into(), err: String::new() };
    let entry =
        serde_json::json!({"exit": 0, "stdout": "NAME AGE\na 1s\nconfigmap/cmg-abcde created\n", "stderr": "x"});
    assert_eq!(compare(&entry, &got("NAME MORE AGE\na x 12s\nconfigmap/cmg-zzzzz created\n"), false), Ok(()));
    for wrong in ["NAME AGE\nb 1s\nconfigmap/cmg-abcde created\n", "a 1s\nNAME AGE\nconfigmap/cmg-abcde created\n", ""]
    {
        assert!(compare(&entry, &got(wrong), false).is_err(), "{wrong}");
        assert!(compare(&entry, &got(wrong), true).is_ok(), "{wrong}");
    }
    assert!(compare(&serde_json::json!({"exit": 1, "stdout": "", "stderr": ""}), &got(""), true).is_err());
}
