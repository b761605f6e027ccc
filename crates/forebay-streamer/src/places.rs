//! Where a path leads. Pure.
//!
//! Callers name models as their command line does: `s3://bucket/llama/…`, or a path of the local file system. Three things say what
//! is read in their place:
//!
//! * `FOREBAY_STREAMER_MAP`: `PREFIX=/PATH`, with commas between. What lies below a prefix lies below that path in the namespace of the
//!   cluster that this machine's configuration names. The longest prefix counts;
//! * `FOREBAY_STREAMER_UP`: origins, with commas between, of which a cache is kept in this process: a directory, such as one of NFS, or a
//!   URL;
//! * other `s3://`, `gs://` and `az://` URLs are read through a cache in this process of their bucket. Other paths are read as they are.

use std::path::PathBuf;

/// The schemes of object stores that callers name.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "az://"];

/// What a session reads from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// What this machine's configuration names.
    Machine,
    /// A cache of it, in this process.
    Up(String),
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To a file or directory of a namespace.
    Cached {
        origin: Origin,
        /// In the namespace: absolute.
        path: String,
        /// What the caller writes in the place of `root`.
        prefix: String,
        /// The path that the prefix stands for, without a slash at its end.
        root: String,
    },
    /// To a local one.
    Local(PathBuf),
}

/// What says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    prefix: String,
    origin: Origin,
    root: String,
}

impl Rules {
    /// Of the two variables.
    ///
    /// # Errors
    /// What cannot be made sense of.
    pub(crate) fn new(map: &str, up: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for rule in listed(map) {
            // A URL may have the sign, a path of the namespace rarely does.
            let (prefix, path) =
                rule.rsplit_once('=').filter(|(prefix, path)| !prefix.is_empty() && path.starts_with('/')).ok_or_else(
                    || format!("FOREBAY_STREAMER_MAP: `{rule}` is no PREFIX=/PATH, as in s3://bucket/models=/models"),
                )?;
            rules.push(Rule { prefix: trimmed(prefix), origin: Origin::Machine, root: trimmed(path) });
        }
        for origin in listed(up) {
            let prefix = trimmed(origin);
            if prefix.ends_with(':') {
                return Err(format!("FOREBAY_STREAMER_UP: `{origin}` names no bucket; the root directory is `/`"));
            }
            // Of the root directory nothing is left: all absolute paths begin so.
            let named = if prefix.is_empty() { "/".to_owned() } else { prefix.clone() };
            rules.push(Rule { origin: Origin::Up(named), prefix, root: String::new() });
        }
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.prefix.len()));
        Ok(Self(rules))
    }

    /// Where `path` leads.
    pub(crate) fn place(&self, path: &str) -> Place {
        let ruled = self.0.iter().find_map(|rule| {
            let rest = below(path, &rule.prefix)?;
            Some(cached(rule.origin.clone(), &rule.prefix, &rule.root, rest))
        });
        ruled.or_else(|| of_bucket(path)).unwrap_or_else(|| Place::Local(path.into()))
    }
}

/// A bucket that no rule names is an origin of its own.
fn of_bucket(path: &str) -> Option<Place> {
    let scheme = SCHEMES.iter().find(|scheme| path.starts_with(**scheme))?;
    let bucket = path[scheme.len()..].split('/').next().filter(|bucket| !bucket.is_empty())?;
    let prefix = &path[..scheme.len() + bucket.len()];
    Some(cached(Origin::Up(prefix.to_owned()), prefix, "", &path[prefix.len()..]))
}

fn cached(origin: Origin, prefix: &str, root: &str, rest: &str) -> Place {
    let path = format!("{root}{}", rest.trim_end_matches('/'));
    let path = if path.is_empty() { "/".to_owned() } else { path };
    Place::Cached { origin, path, prefix: prefix.to_owned(), root: root.to_owned() }
}

/// What follows `prefix` in `path`, if that ends where a name does: empty, or with a slash in front.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn listed(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn trimmed(path: &str) -> String {
    path.trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(map: &str, up: &str) -> Rules {
        Rules::new(map, up).unwrap()
    }

    fn leads(rules: &Rules, path: &str) -> (Option<Origin>, String) {
        match rules.place(path) {
            Place::Cached { origin, path, .. } => (Some(origin), path),
            Place::Local(path) => (None, path.display().to_string()),
        }
    }

    #[test]
    fn the_longest_prefix_that_ends_where_a_name_does_leads_to_the_machines_cluster() {
        let rules = rules("s3://b/models=/m, s3://b=/all/, /mnt/data/=/", "");
        let to = |path: &str| leads(&rules, path);
        let machine = |path: &str| (Some(Origin::Machine), path.to_owned());
        assert_eq!(to("s3://b/models/x/1.safetensors"), machine("/m/x/1.safetensors"));
        assert_eq!(to("s3://b/models2/x"), machine("/all/models2/x"));
        assert_eq!(to("s3://b/"), machine("/all"));
        assert_eq!(to("/mnt/data"), machine("/"));
        assert_eq!(to("/mnt/data/a"), machine("/a"));
        assert_eq!(to("/mnt/database/a"), (None, "/mnt/database/a".to_owned()));
    }

    #[test]
    fn a_bucket_or_an_origin_that_is_named_is_cached_in_this_process_and_other_paths_are_local() {
        let rules = rules("", "/nfs/models/,s3://b/only");
        let up = |origin: &str, path: &str| (Some(Origin::Up(origin.to_owned())), path.to_owned());
        assert_eq!(leads(&rules, "/nfs/models/a/b"), up("/nfs/models", "/a/b"));
        assert_eq!(leads(&rules, "s3://b/only/c"), up("s3://b/only", "/c"));
        assert_eq!(leads(&rules, "s3://b/other/c"), up("s3://b", "/other/c"));
        assert_eq!(leads(&rules, "gs://bucket"), up("gs://bucket", "/"));
        assert_eq!(leads(&rules, "/tmp/x"), (None, "/tmp/x".to_owned()));
        assert_eq!(leads(&rules, "s3://"), (None, "s3://".to_owned()));
    }

    #[test]
    fn the_root_directory_is_an_origin_of_all_paths_that_no_other_rule_has() {
        let rules = rules("/mnt/data=/data", "/, /nfs/models");
        let up = |origin: &str, path: &str| (Some(Origin::Up(origin.to_owned())), path.to_owned());
        assert_eq!(leads(&rules, "/tmp/x"), up("/", "/tmp/x"));
        assert_eq!(leads(&rules, "/"), up("/", "/"));
        assert_eq!(leads(&rules, "/nfs/models/a"), up("/nfs/models", "/a"));
        assert_eq!(leads(&rules, "/mnt/data/b"), (Some(Origin::Machine), "/data/b".to_owned()));
        assert_eq!(leads(&rules, "s3://b/c"), up("s3://b", "/c"));
        assert_eq!(leads(&rules, "tmp/x"), (None, "tmp/x".to_owned()));
    }

    #[test]
    fn a_rule_that_makes_no_sense_says_what_one_looks_like() {
        for wrong in ["s3://b", "s3://b=models", "=/models"] {
            assert!(Rules::new(wrong, "").unwrap_err().contains("as in s3://bucket/models=/models"), "{wrong}");
        }
        for wrong in ["s3://", "/nfs,file:///"] {
            assert!(Rules::new("", wrong).unwrap_err().contains("names no bucket"), "{wrong}");
        }
    }
}
