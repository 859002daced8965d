//! Paths, queries, selectors, continue tokens and `Accept` headers.
#![no_main]
#![allow(missing_docs, clippy::indexing_slicing, reason = "a fuzz target may panic")]

use apiserver_api::{
    RequestInfo,
    list_options::request_timeout,
    url::{self, Target},
};
use apiserver_machinery::{
    ContinueToken, builtin, negotiate,
    quantity::Quantity,
    selector::{FieldSelector, LabelSelector},
};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let rest = match url::split(path) {
        Ok(
            Target::Cluster { rest, .. }
            | Target::Wildcard { rest }
            | Target::Cache { rest }
            | Target::VirtualWorkspace { rest }
            | Target::None { rest },
        ) => rest,
        Err(_) => path,
    };
    assert!(rest == "/" || path.ends_with(rest), "the rest is a part of the path");
    if let Ok(info) = RequestInfo::parse("GET", rest, query) {
        let _ = info.list_options().map(|options| options.revision());
    }
    let _ = request_timeout(query);

    let resource = builtin::all().first().expect("there are kinds");
    let object = json!({"metadata": {"name": "a", "labels": {"a": "b"}}});
    let _ = LabelSelector::parse(query).map(|selector| selector.matches(&object));
    let _ = FieldSelector::parse(resource, query).map(|selector| selector.matches(&object));
    if let Ok(token) = ContinueToken::decode(query, resource, "c", "n") {
        let again = ContinueToken::decode(&token.encode(resource, "c", "n"), resource, "c", "n");
        assert_eq!(again.ok(), Some(token));
    }
    if let Ok(quantity) = query.parse::<Quantity>() {
        let text = quantity.to_string();
        let again = text.parse::<Quantity>().map(|again| again.to_string());
        assert_eq!(again, Ok(text), "one text is final");
    }
    for is_list in [false, true] {
        let _ = negotiate::object_answer(Some(query), resource, is_list);
    }
    let _ = (negotiate::watch_answer(Some(query), resource), negotiate::discovery_form(Some(query)));
});
