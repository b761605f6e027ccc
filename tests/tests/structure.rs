//! The structure of the code: no circle of files within a crate but those that ARCHITECTURE.md names with a reason, no crate
//! that imports one of its own layer or of a layer above it, and no test that is never built.
//!
//! A file depends on another if a path in it (an import, a type, a call) names an item that is defined in the other, whatever
//! re-exports lie between them. Declaring a module is no dependency, and tests are left out. Cargo forbids circles of crates by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use syn::visit::Visit;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// The directories of the workspace's packages.
fn packages() -> Vec<PathBuf> {
    let manifest = manifest(&root());
    let excluded: Vec<_> = strings(&manifest["workspace"]["exclude"]);
    let mut found = Vec::new();
    for member in strings(&manifest["workspace"]["members"]) {
        match member.strip_suffix("/*") {
            Some(parent) => {
                let entries = std::fs::read_dir(root().join(parent)).unwrap().map(|entry| entry.unwrap().path());
                found.extend(entries.filter(|path| path.join("Cargo.toml").exists()));
            }
            None => found.push(root().join(member)),
        }
    }
    found.retain(|path| !excluded.iter().any(|excluded| *path == root().join(excluded)));
    found.sort();
    found
}

fn manifest(package: &Path) -> toml_edit::DocumentMut {
    std::fs::read_to_string(package.join("Cargo.toml")).unwrap().parse().unwrap()
}

fn strings(item: &toml_edit::Item) -> Vec<String> {
    item.as_array().into_iter().flatten().filter_map(|value| Some(value.as_str()?.to_owned())).collect()
}

fn name(manifest: &toml_edit::DocumentMut) -> String {
    manifest["package"]["name"].as_str().unwrap().to_owned()
}

/// What stands between backticks.
fn quoted(line: &str) -> BTreeSet<String> {
    line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn section(heading: &str) -> String {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let after = text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("a section {heading:?}")).1;
    after.split("\n## ").next().unwrap_or_default().to_owned()
}

#[test]
fn no_crate_imports_one_of_its_own_layer_or_above_it() {
    let mut layers: HashMap<String, usize> = HashMap::new();
    for (number, line) in section("Layers").lines().filter(|line| line.starts_with("| `")).enumerate() {
        for package in quoted(line.split('|').nth(1).unwrap_or_default()) {
            assert_eq!(layers.insert(package.clone(), number), None, "{package} is in two layers");
        }
    }
    let mut wrong = Vec::new();
    for package in packages() {
        let manifest = manifest(&package);
        let name = name(&manifest);
        let Some(own) = layers.remove_entry(&name) else {
            wrong.push(format!("{name} has no layer in ARCHITECTURE.md"));
            continue;
        };
        layers.insert(own.0, own.1);
        let tables = ["dependencies", "build-dependencies"];
        let dependencies =
            tables.iter().filter_map(|table| manifest.get(table)?.as_table_like()).flat_map(|table| table.iter());
        for (dependency, _) in dependencies {
            // The table reads from the top down.
            if layers.get(dependency).is_some_and(|layer| *layer <= own.1) {
                wrong.push(format!("{name} imports {dependency}, which is not below it"));
            }
        }
    }
    let known: BTreeSet<_> = packages().iter().map(|package| self::name(&manifest(package))).collect();
    wrong.extend(layers.keys().filter(|name| !known.contains(*name)).map(|name| format!("there is no {name}")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_depend_on_each_other_in_no_circle_but_those_with_a_reason() {
    let allowed: Vec<_> = section("Circles that stay").lines().map(quoted).filter(|files| !files.is_empty()).collect();
    let mut graph = Graph::default();
    for package in packages() {
        let sources = package.join("src");
        let binaries = std::fs::read_dir(sources.join("bin")).into_iter().flatten().map(|entry| entry.unwrap().path());
        for start in [sources.join("lib.rs"), sources.join("main.rs")].into_iter().chain(binaries) {
            if start.exists() {
                let mut tree = Tree::default();
                tree.load(Vec::new(), &start);
                tree.connect(&mut graph);
            }
        }
    }
    let circles = graph.circles();
    let told = |circle: &BTreeSet<String>| {
        let arrows: Vec<_> = graph.0.iter().filter(|(from, _)| circle.contains(*from)).collect();
        let arrows = arrows.iter().flat_map(|(from, names)| {
            let names = names.iter().filter(|(to, _)| circle.contains(*to));
            names.map(move |(to, names)| format!("  {from} -> {to}: {names:?}\n"))
        });
        format!("circle of {circle:#?}\n{}", arrows.collect::<String>())
    };
    let new: Vec<_> = circles.iter().filter(|circle| !allowed.iter().any(|row| circle.is_subset(row))).collect();
    assert!(new.is_empty(), "{} new:\n{}", new.len(), new.into_iter().map(told).collect::<String>());
    for row in &allowed {
        assert!(
            circles.iter().any(|circle| circle.is_subset(row)),
            "no circle any more, so ARCHITECTURE.md is wrong: {row:?}"
        );
    }
}

/// To build a program of tests that has none takes as long as to build any: `test = false` says that there are none.
#[test]
fn what_is_not_built_to_be_tested_has_no_tests() {
    let mut wrong = Vec::new();
    for package in packages() {
        let manifest = manifest(&package);
        let bins = manifest.get("bin").and_then(toml_edit::Item::as_array_of_tables);
        let bins = bins.into_iter().flatten().map(|bin| bin.get("test"));
        let lib = manifest.get("lib").and_then(|lib| lib.get("test"));
        if bins.chain([lib]).flatten().any(|test| test.as_bool() == Some(false)) {
            wrong.extend(with_tests(&package.join("src")));
        }
    }
    assert!(wrong.is_empty(), "they never run, as their Cargo.toml says `test = false`: {wrong:#?}");
}

/// The files below a directory that have tests.
fn with_tests(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(with_tests(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.extend(["cfg(test)", "#[test]"].iter().any(|word| text.contains(word)).then_some(path));
        }
    }
    found
}

/// Which file depends on which, and for what.
#[derive(Default)]
struct Graph(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Graph {
    fn add(&mut self, from: &Path, to: &Path, name: &str) {
        let [from, to] = [from, to].map(|path| path.strip_prefix(root()).unwrap().display().to_string());
        if from != to {
            self.0.entry(to.clone()).or_default();
            self.0.entry(from).or_default().entry(to).or_default().insert(name.to_owned());
        }
    }

    /// Files that depend on each other over whatever others: the strongly connected components of more than one (Kosaraju).
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let mut turned: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (from, names) in &self.0 {
            names.keys().for_each(|to| turned.entry(to).or_default().push(from));
        }
        let (mut seen, mut finished) = (BTreeSet::new(), Vec::new());
        for from in self.0.keys() {
            visit(from, &|at| self.0[at].keys().collect(), &mut seen, &mut finished);
        }
        let (mut seen, mut circles) = (BTreeSet::new(), Vec::new());
        for from in finished.into_iter().rev() {
            let mut component = Vec::new();
            visit(from, &|at| turned.get(at).cloned().unwrap_or_default(), &mut seen, &mut component);
            if component.len() > 1 {
                circles.push(component.into_iter().cloned().collect());
            }
        }
        circles
    }
}

/// Adds to `finished` what is reached from a file and not yet seen, each after all that it reaches.
fn visit<'a>(
    from: &'a String,
    next: &dyn Fn(&'a String) -> Vec<&'a String>,
    seen: &mut BTreeSet<&'a String>,
    finished: &mut Vec<&'a String>,
) {
    if seen.insert(from) {
        next(from).into_iter().for_each(|to| visit(to, next, seen, finished));
        finished.push(from);
    }
}

/// The modules of one library or program.
#[derive(Default)]
struct Tree(BTreeMap<Vec<String>, Module>);

#[derive(Default)]
struct Module {
    file: PathBuf,
    items: BTreeSet<String>,
    /// What a name stands for that is imported.
    imports: HashMap<String, Vec<String>>,
    /// The paths of imports that are for its own use; what it re-exports it need not know.
    own: Vec<Vec<String>>,
    globs: Vec<Vec<String>>,
    /// All paths that the module's code mentions.
    paths: BTreeSet<Vec<String>>,
}

impl Tree {
    fn load(&mut self, place: Vec<String>, file: &Path) {
        let text = std::fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (parent, stem) = (file.parent().unwrap(), file.file_stem().unwrap());
        let is_directory = place.is_empty() || stem == "mod";
        let below = if is_directory { parent.to_owned() } else { parent.join(stem) };
        self.enter(place, file, &below, &parsed.items);
    }

    fn enter(&mut self, place: Vec<String>, file: &Path, below: &Path, items: &[syn::Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !is_of_tests(attributes(item))) {
            module.items.extend(defined(item));
            match item {
                syn::Item::Use(item) => {
                    module.import(&item.tree, matches!(item.vis, syn::Visibility::Inherited), &mut Vec::new())
                }
                syn::Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let inner: Vec<_> = place.iter().cloned().chain([name.clone()]).collect();
                    match &item.content {
                        Some((_, items)) => self.enter(inner, file, &below.join(&name), items),
                        None => {
                            let flat = below.join(format!("{name}.rs"));
                            let nested = below.join(&name).join("mod.rs");
                            self.load(inner, if flat.exists() { &flat } else { &nested });
                        }
                    }
                }
                other => Paths(&mut module.paths).visit_item(other),
            }
        }
        self.0.insert(place, module);
    }

    fn connect(&self, graph: &mut Graph) {
        for (place, module) in &self.0 {
            let imported = &module.own;
            for path in module.paths.iter().chain(imported) {
                if let Some(to) = self.find(place, path, 0) {
                    graph.add(&module.file, &self.0[to].file, path.last().unwrap());
                }
            }
        }
    }

    /// The module that defines what a path names, as seen from one.
    fn find<'a>(&'a self, place: &'a [String], path: &[String], depth: usize) -> Option<&'a Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.within(self.0.get_key_value(&[][..] as &[String])?.0, rest, depth),
            "self" => self.within(self.0.get_key_value(place)?.0, rest, depth),
            "super" => {
                let parent = &place[..place.len().checked_sub(1)?];
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.find(parent, rest, depth),
                    false => self.within(self.0.get_key_value(parent)?.0, rest, depth),
                }
            }
            _ => self.within(self.0.get_key_value(place)?.0, path, depth),
        }
    }

    fn within<'a>(&'a self, place: &'a Vec<String>, path: &[String], depth: usize) -> Option<&'a Vec<String>> {
        let (first, rest) = path.split_first()?;
        let module = self.0.get(place).filter(|_| depth < 16)?;
        let child: Vec<String> = place.iter().chain([first]).cloned().collect();
        if let Some((child, _)) = self.0.get_key_value(&child) {
            return self.within(child, rest, depth);
        }
        if module.items.contains(first) {
            return Some(place);
        }
        if let Some(imported) = module.imports.get(first) {
            let whole: Vec<String> = imported.iter().chain(rest).cloned().collect();
            // A name that is imported from another crate of that name stands for nothing here.
            return if whole == path { None } else { self.find(place, &whole, depth + 1) };
        }
        module.globs.iter().find_map(|glob| {
            let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
            self.find(place, &whole, depth + 1)
        })
    }
}

impl Module {
    fn named(&mut self, ident: &syn::Ident, name: &syn::Ident, is_own: bool, before: &[String]) {
        let path: Vec<_> = before.iter().cloned().chain([ident.to_string()]).collect();
        if is_own {
            self.own.push(path.clone());
        }
        self.imports.insert(name.to_string(), path);
    }

    fn import(&mut self, tree: &syn::UseTree, is_own: bool, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, is_own, before);
                before.pop();
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().unwrap().clone();
                self.imports.insert(last, before.clone());
            }
            syn::UseTree::Name(name) => self.named(&name.ident, &name.ident, is_own, before),
            syn::UseTree::Rename(renamed) => self.named(&renamed.ident, &renamed.rename, is_own, before),
            syn::UseTree::Glob(_) => self.globs.push(before.clone()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, is_own, before)),
        }
    }
}

/// Collects the paths of more than one segment: what has one is defined here or imported. Modules in functions are not followed.
struct Paths<'a>(&'a mut BTreeSet<Vec<String>>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.0.insert(segments);
        syn::visit::visit_path(self, path);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_of_tests(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }
}

fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            let condition = list.tokens.to_string();
            ["test", "all (test", "loom", "shuttle"].iter().any(|beginning| condition.starts_with(beginning))
        }
        _ => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of what an item defines.
fn defined(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}
