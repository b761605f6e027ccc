//! What is in `deploy/` fits the program: its versions, its keys, its files. What takes a system, a container or helm is
//! tried by `make test-packages`, `test-image` and `test-helm`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{finish, forebay, skipped};
use yaml_rust2::{Yaml, YamlLoader};

const SOON: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(text: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(text).expect("YAML")
}

/// What the chart is rendered to, by name.
fn rendered() -> Vec<(String, Vec<Yaml>)> {
    let files = std::fs::read_dir(root().join("deploy/helm/tests")).unwrap().map(|entry| entry.unwrap().path());
    let golden = files.filter(|path| path.to_string_lossy().ends_with(".golden.yaml"));
    golden.map(|path| (path.display().to_string(), yaml(&std::fs::read_to_string(&path).unwrap()))).collect()
}

/// The blocks of a guide that begin with this, without the line that says so.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let pieces = page.split("\n```").skip(1).step_by(2);
    pieces
        .filter_map(|piece| piece.split_once('\n').filter(|(first, _)| *first == kind))
        .map(|(_, text)| text)
        .collect()
}

#[test]
fn the_guide_installs_the_values_whose_chart_is_compared() {
    let page = read("docs/guides/kubernetes.md");
    let shown = blocks(&page, "yaml kubernetes");
    let values = shown.iter().find(|text| text.starts_with("# values.yaml\n")).expect("the values");
    assert_eq!(yaml(values), yaml(&read("deploy/helm/tests/trial.values.yaml")));
}

/// `make test-k8s` has a kubectl, and no test here: that files are shown, and objects are there, is what can be told without one.
#[test]
fn what_guides_have_helm_and_kubectl_do_is_about_what_there_is() {
    let name_of = |object: &Yaml| {
        Some((object["kind"].as_str()?.to_lowercase(), object["metadata"]["name"].as_str()?.to_owned()))
    };
    let rendered = rendered();
    let made: Vec<_> = rendered.iter().flat_map(|(_, documents)| documents).filter_map(name_of).collect();
    let (mut files, mut objects) = (0, 0);
    for guide in ["kubernetes.md", "operator.md"] {
        let page = read(&format!("docs/guides/{guide}"));
        let shown = blocks(&page, "yaml kubernetes");
        let documents: Vec<Yaml> = shown.iter().flat_map(|text| yaml(text)).collect();
        let of_guide: Vec<_> = documents.iter().filter_map(name_of).collect();
        for line in blocks(&page, "sh kubernetes").iter().flat_map(|text| text.lines()) {
            assert_eq!(finish(Command::new("bash").args(["-n", "-c", line]), SOON).code, Some(0), "{guide}: {line}");
            let words: Vec<&str> = line.split_whitespace().collect();
            for (option, file) in words.iter().zip(words.iter().skip(1)) {
                if matches!(*option, "-f" | "--values") && *file != "-" {
                    let is_shown = shown.iter().any(|text| text.starts_with(&format!("# {file}\n")));
                    assert!(is_shown || root().join(file).exists(), "{guide}: {line}");
                    files += 1;
                }
            }
            for (kind, name) in words.iter().filter_map(|word| word.split_once('/')) {
                let kind = if kind == "deploy" { "deployment" } else { kind };
                let is_known =
                    ["deployment", "statefulset", "daemonset", "forebaymount", "forebayload"].contains(&kind);
                if is_known && !name.contains('/') {
                    let is_it = |object: &(String, String)| object.0 == kind && object.1 == name;
                    assert!(made.iter().chain(&of_guide).any(is_it), "{guide}: {line}");
                    objects += 1;
                }
            }
        }
    }
    assert!(files >= 6 && objects >= 4, "{files}, {objects}");
}

/// The headings of a page's sections that have a block which begins so.
fn sections_with<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let sections = page.split("\n## ").skip(1).filter(|section| !blocks(section, kind).is_empty());
    sections.filter_map(|section| section.lines().next()).collect()
}

/// Scripts run sections of guides as they stand, by `guide PAGE "HEADING"`, or a page by `guide PAGE`. Of the places where
/// commands are typed, hosts are those of `guides.rs`, and a release is one page's.
#[test]
fn every_section_of_a_guide_is_run_by_a_script() {
    let files = |directory: &str, extension: &str| -> Vec<PathBuf> {
        let files = std::fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
    };
    let scripts: String = files("scripts", "sh").iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let is_line = |call: &str| scripts.lines().any(|line| line.trim() == call);
    let (mut run, mut nowhere) = (0, Vec::new());
    for path in files("docs/guides", "md") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = std::fs::read_to_string(&path).unwrap();
        for place in ["kubernetes", "image", "packages"] {
            for heading in sections_with(&page, &format!("sh {place}")) {
                let section = format!("guide {name} \"{heading}\"");
                let is_run = scripts.contains(&section) || is_line(&format!("guide {name}"));
                run += usize::from(is_run);
                nowhere.extend((!is_run).then_some(section));
            }
        }
    }
    // cert-manager's images are not to be had where `make test-k8s` runs: `cert_manager.rs` runs its code.
    nowhere.retain(|section| !section.starts_with("guide cert-manager.md "));
    assert!(nowhere.is_empty() && run > 12, "{run} are run, and these nowhere: {nowhere:#?}");
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = &yaml(&read("deploy/helm/forebay/Chart.yaml"))[0];
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key].as_str(), Some(env!("CARGO_PKG_VERSION")), "{key}");
    }
    let guide = read("docs/guides/air-gapped.md");
    for name in ["forebay-VERSION.tar\n", "forebay-VERSION.tgz ", "localhost/forebay:VERSION "] {
        let name = name.replace("VERSION", env!("CARGO_PKG_VERSION"));
        assert!(guide.contains(&name), "{name}");
    }
}

#[test]
fn the_chart_has_the_alerts_and_the_dashboard_that_are_documented() {
    let of_chart = |name: &str| read(&format!("deploy/helm/forebay/files/{name}"));
    assert_eq!(of_chart("alerts.yml"), read("deploy/prometheus/alerts.yml"));
    assert_eq!(of_chart("dashboard.json"), read("deploy/grafana/forebay.json"));
}

/// The definitions of the operator's kinds are files of its crate, to which those of the chart are links.
#[test]
fn the_chart_has_the_definitions_that_the_program_prints() {
    let of_chart = |kind: &str| read(&format!("deploy/helm/forebay/files/crds/{kind}.yaml"));
    let expected = ["forebaymounts", "forebayloads", "forebaypolicies"].map(of_chart).concat();
    let printed = finish(forebay(&[]).args(["operator", "crds"]), SOON);
    assert_eq!((printed.code, String::from_utf8(printed.stdout).unwrap()), (Some(0), expected));
    assert_eq!(std::fs::read_dir(root().join("deploy/helm/forebay/files/crds")).unwrap().count(), 3);
}

/// The operator may do what it does, and nothing else: no Secrets, nothing that is made but Events, nothing that is
/// everybody's.
#[test]
fn the_operator_has_the_rights_that_it_needs() {
    let rendered = rendered();
    let Some((_, documents)) = rendered.iter().find(|(name, _)| name.ends_with("operator.golden.yaml")) else {
        return skipped("the chart has not been rendered yet: FOREBAY_BLESS=1 make test-helm");
    };
    let roles = documents.iter().filter(|document| matches!(document["kind"].as_str(), Some("Role" | "ClusterRole")));
    let words = |list: &Yaml| -> Vec<String> {
        list.as_vec().into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
    };
    let mut seen = 0;
    for role in roles {
        let is_cluster = role["kind"].as_str() == Some("ClusterRole");
        for rule in role["rules"].as_vec().expect("rules") {
            let (resources, verbs) = (words(&rule["resources"]), words(&rule["verbs"]));
            for resource in &resources {
                let allowed: &[&str] = match resource.as_str() {
                    "nodes" if is_cluster => &["list", "watch"],
                    "pods" if !is_cluster => &["list", "watch", "patch"],
                    "configmaps" if !is_cluster && words(&rule["resourceNames"]).len() == 1 => &["get", "patch"],
                    "events" if !is_cluster => &["create", "patch"],
                    "forebayloads" if !is_cluster => &["get", "list", "watch", "patch", "delete"],
                    own if !is_cluster && own.starts_with("forebay") => &["get", "list", "watch", "patch"],
                    _ => &[],
                };
                let beyond: Vec<_> = verbs.iter().filter(|verb| !allowed.contains(&verb.as_str())).collect();
                assert!(beyond.is_empty(), "{resource}: {beyond:?}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "{seen}");
}

/// Each key that the chart sets is one, and has a value that it may have.
#[test]
fn what_the_chart_configures_is_a_configuration() {
    let rendered = rendered();
    if rendered.is_empty() {
        return skipped("the chart has not been rendered yet: FOREBAY_BLESS=1 make test-helm");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forebay.toml");
    let mut checked = 0;
    for (name, documents) in &rendered {
        for document in documents {
            let Some(text) = document["data"]["forebay.toml"].as_str() else { continue };
            std::fs::write(&file, text).unwrap();
            let finished = finish(forebay(&[]).args(["conf", "check"]).arg(&file), SOON);
            assert_eq!(finished.code, Some(0), "{name}: {text}{}", finished.stderr);
            checked += 1;
        }
    }
    assert!(checked >= 6, "{checked}");
}

/// A pod without rights is one of pod security `restricted`: every container of it says so.
#[test]
fn pods_of_the_restricted_profile_have_no_rights() {
    let rendered = rendered();
    let Some((_, documents)) = rendered.iter().find(|(name, _)| name.ends_with("restricted.golden.yaml")) else {
        return skipped("the chart has not been rendered yet: FOREBAY_BLESS=1 make test-helm");
    };
    let pods: Vec<&Yaml> = documents.iter().map(|document| &document["spec"]["template"]["spec"]).collect();
    let pods: Vec<&Yaml> = pods.into_iter().filter(|pod| !pod.is_badvalue()).collect();
    assert!(pods.len() >= 2, "{}", pods.len());
    for pod in pods {
        let of_pod = &pod["securityContext"];
        assert_eq!(of_pod["runAsNonRoot"].as_bool(), Some(true), "{pod:?}");
        assert_eq!(of_pod["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"), "{pod:?}");
        assert!(pod["hostNetwork"].is_badvalue(), "{pod:?}");
        for container in pod["containers"].as_vec().expect("containers") {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false), "{container:?}");
            assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true), "{container:?}");
            assert_eq!(context["capabilities"]["drop"][0].as_str(), Some("ALL"), "{container:?}");
            assert!(context["capabilities"]["add"].is_badvalue(), "{container:?}");
        }
        for volume in pod["volumes"].as_vec().into_iter().flatten() {
            assert!(volume["hostPath"].is_badvalue(), "{volume:?}");
        }
    }
}

/// Commands of scripts and of docs are those of `make`: what is named is there.
#[test]
fn every_script_that_make_runs_is_there_and_can_be_run() {
    use std::os::unix::fs::PermissionsExt as _;
    let makefile = read("Makefile");
    let scripts =
        makefile.split_whitespace().filter_map(|word| word.strip_prefix('@').unwrap_or(word).strip_prefix("scripts/"));
    let mut seen = 0;
    for script in scripts.filter(|script| !script.contains('*')) {
        let path = root().join("scripts").join(script.trim_end_matches([',', ';', ')']));
        let mode = std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions();
        assert!(mode.mode() & 0o111 != 0, "{}", path.display());
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}
