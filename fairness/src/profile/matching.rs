//! The rules of one FlowSchema, compiled (apf.md 2.2).
//!
//! A wildcard counts only as the sole member of its list; everything else is compared literally. Lists are
//! sorted, so a request costs a binary search for each, and nothing is allocated.

use std::cmp::Ordering;

use apiserver_api::{RequestInfo, UserInfo, Verb};

/// The key of the user extra in which kcp names the workspace a service account lives in.
const HOME_CLUSTER: &str = "authentication.kcp.io/cluster-name";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user of a request, seen from the workspace that the request is for.
pub(super) struct Requester<'a> {
    pub(super) user: &'a UserInfo,
    /// `<namespace>:<name>` if it is one of the workspace's own service accounts.
    service_account: Option<&'a str>,
    /// The home workspace of a service account that lives elsewhere.
    pub(super) foreign_home: Option<&'a str>,
}

impl<'a> Requester<'a> {
    /// A service account without the extra is taken for one of the workspace (apf.md 9, row 27).
    pub(super) fn new(user: &'a UserInfo, workspace: &str) -> Self {
        let account = user.name.strip_prefix(SERVICE_ACCOUNT);
        let home = account.and_then(|_| {
            let (_, values) = user.extra.iter().find(|(key, _)| &**key == HOME_CLUSTER)?;
            values.first().map(|home| &**home)
        });
        let foreign_home = home.filter(|home| *home != workspace);
        Self { user, service_account: account.filter(|_| foreign_home.is_none()), foreign_home }
    }
}

/// A list of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Words {
    Any,
    /// Sorted.
    These(Box<[Box<str>]>),
}

impl Words {
    pub(super) fn new<S: AsRef<str>>(list: &[S]) -> Self {
        match list {
            [only] if only.as_ref() == "*" => Self::Any,
            _ => Self::These(sorted(list.iter().map(|word| word.as_ref().into()).collect())),
        }
    }

    fn has(&self, word: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(words) => has(words, word),
        }
    }

    /// Whether `resource`, or `resource/subresource` if there is one, is in the list.
    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(words) if subresource.is_empty() => has(words, resource),
            Self::These(words) => words.binary_search_by(|word| cmp_joined(word, resource, subresource)).is_ok(),
        }
    }
}

pub(super) fn sorted(mut words: Vec<Box<str>>) -> Box<[Box<str>]> {
    words.sort_unstable();
    words.dedup();
    words.into()
}

/// Lists up to this long are searched in line: words of another length need not be looked into.
const SHORT: usize = 8;

fn has(words: &[Box<str>], word: &str) -> bool {
    if words.len() <= SHORT {
        words.iter().any(|w| **w == *word)
    } else {
        words.binary_search_by(|w| (**w).cmp(word)).is_ok()
    }
}

/// Compares `word` with `resource/subresource` without joining them.
fn cmp_joined(word: &str, resource: &str, subresource: &str) -> Ordering {
    let joined = resource.bytes().chain(*b"/").chain(subresource.bytes());
    word.bytes().cmp(joined)
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verbs(u16);

impl Verbs {
    pub(super) fn new<S: AsRef<str>>(list: &[S]) -> Self {
        match list {
            [only] if only.as_ref() == "*" => Self(u16::MAX),
            _ => Self(list.iter().filter_map(|verb| named(verb.as_ref())).fold(0, |set, verb| set | bit(verb))),
        }
    }

    fn has(self, verb: Verb) -> bool {
        self.0 & bit(verb) != 0
    }
}

fn bit(verb: Verb) -> u16 {
    1 << verb as u16
}

/// The verb that a rule means by `word`; no rule can name [`Verb::Other`], and case matters.
fn named(word: &str) -> Option<Verb> {
    Some(match word {
        "get" => Verb::Get,
        "list" => Verb::List,
        "watch" => Verb::Watch,
        "create" => Verb::Create,
        "update" => Verb::Update,
        "patch" => Verb::Patch,
        "delete" => Verb::Delete,
        "deletecollection" => Verb::DeleteCollection,
        "proxy" => Verb::Proxy,
        "post" => Verb::Post,
        "put" => Verb::Put,
        "head" => Verb::Head,
        "options" => Verb::Options,
        _ => return None,
    })
}

/// Whom a rule is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Subjects {
    /// User or group `*`.
    pub(super) anybody: bool,
    /// Sorted, like the other lists.
    pub(super) users: Box<[Box<str>]>,
    pub(super) groups: Box<[Box<str>]>,
    /// `<namespace>:<name>`.
    pub(super) service_accounts: Box<[Box<str>]>,
    /// `<namespace>:`, for all accounts of a namespace.
    pub(super) service_account_namespaces: Box<[Box<str>]>,
}

impl Subjects {
    fn have(&self, who: &Requester<'_>) -> bool {
        self.anybody
            || has(&self.users, &who.user.name)
            || (!self.groups.is_empty() && who.user.groups.iter().any(|group| has(&self.groups, group)))
            || who.service_account.is_some_and(|account| {
                has(&self.service_accounts, account)
                    || self.service_account_namespaces.iter().any(|ns| account.starts_with(&**ns))
            })
    }
}

/// One resource rule: verb, group, resource and scope must all fit.
#[derive(Clone, Debug)]
pub(super) struct ResourceRule {
    pub(super) verbs: Verbs,
    pub(super) api_groups: Words,
    pub(super) resources: Words,
    /// Whether requests without a namespace fit.
    pub(super) cluster_scope: bool,
    /// Those of requests with a namespace.
    pub(super) namespaces: Words,
}

impl ResourceRule {
    fn fits(&self, info: &RequestInfo<'_>) -> bool {
        self.verbs.has(info.verb)
            && self.resources.has_resource(&info.resource, &info.subresource)
            && self.api_groups.has(&info.api_group)
            && if info.namespace.is_empty() { self.cluster_scope } else { self.namespaces.has(&info.namespace) }
    }
}

/// One non-resource rule.
#[derive(Clone, Debug)]
pub(super) struct PathRule {
    pub(super) verbs: Verbs,
    pub(super) paths: Paths,
}

/// Path patterns. Upstream reads `/x`, `/x/`, `/x*` and `/x/*` alike as everything below `/x/`; what is
/// written without a wildcard also means itself.
#[derive(Clone, Debug)]
pub(super) enum Paths {
    Any,
    /// The patterns as written and, for each, the prefix it stands for.
    These {
        exact: Box<[Box<str>]>,
        prefixes: Box<[Box<str>]>,
    },
}

impl Paths {
    pub(super) fn new<S: AsRef<str>>(list: &[S]) -> Self {
        let Words::These(exact) = Words::new(list) else { return Self::Any };
        let prefix = |pattern: &str| {
            let stem = pattern.strip_suffix('*').unwrap_or(pattern);
            if stem.ends_with('/') { stem.into() } else { format!("{stem}/").into_boxed_str() }
        };
        let prefixes = sorted(exact.iter().map(|pattern| prefix(pattern)).collect());
        Self::These { exact, prefixes }
    }

    fn has(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These { exact, prefixes } => {
                has(exact, path) || prefixes.iter().any(|prefix| path.starts_with(&**prefix))
            }
        }
    }
}

/// One rule of a FlowSchema: any of the subjects, and any of the rules of the request's sort.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) subjects: Subjects,
    pub(super) resource_rules: Box<[ResourceRule]>,
    pub(super) path_rules: Box<[PathRule]>,
}

impl Rule {
    pub(super) fn matches(&self, who: &Requester<'_>, info: &RequestInfo<'_>) -> bool {
        self.subjects.have(who)
            && if info.is_resource {
                self.resource_rules.iter().any(|rule| rule.fits(info))
            } else {
                self.path_rules.iter().any(|rule| rule.verbs.has(info.verb) && rule.paths.has(&info.path))
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_comparison_is_that_of_the_joined_text() {
        let texts = ["", "pods", "pods/", "pods/log", "pods/logs", "pod", "pods0", "po/ds"];
        for word in texts {
            for (resource, sub) in [("pods", "log"), ("pods", "logs"), ("po", "ds"), ("pods", "z")] {
                assert_eq!(cmp_joined(word, resource, sub), word.cmp(&format!("{resource}/{sub}")), "{word}");
            }
        }
    }

    #[test]
    fn long_lists_are_searched_like_short_ones() {
        let words: Vec<String> = (0..3 * SHORT).map(|n| format!("w{n}")).collect();
        for len in [0, 1, SHORT, SHORT + 1, words.len()] {
            let list = Words::new(&words[..len]);
            for (n, word) in words.iter().enumerate() {
                assert_eq!(list.has(word), n < len);
            }
        }
    }

    #[test]
    fn verbs_are_a_set_and_case_matters() {
        let verbs = Verbs::new(&["get", "LIST", "*"]);
        assert!(verbs.has(Verb::Get) && !verbs.has(Verb::List) && !verbs.has(Verb::Other));
        assert!(Verbs::new(&["*"]).has(Verb::Other));
        assert!(!Verbs::new::<&str>(&[]).has(Verb::Get));
    }

    #[test]
    fn a_foreign_service_account_is_no_account_of_the_workspace() {
        let mut user = UserInfo::new("system:serviceaccount:ns:robot", &[]);
        assert_eq!(Requester::new(&user, "here").service_account, Some("ns:robot"), "no extra: at home");
        user.extra = vec![(HOME_CLUSTER.into(), vec!["here".into()])];
        assert_eq!(Requester::new(&user, "here").foreign_home, None);
        let abroad = Requester::new(&user, "there");
        assert_eq!((abroad.service_account, abroad.foreign_home), (None, Some("here")));
        user.name = "alice".into();
        assert_eq!(Requester::new(&user, "there").foreign_home, None, "only service accounts have a home");
    }
}
