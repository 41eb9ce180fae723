//! The import checker of a module tree: rooms are the modules right below its root, and a table lists the allowed
//! imports between rooms.
//!
//! It reads production code only: items, statements, fields and arms under `#[cfg(test)]` are left out. An import is a
//! `use` tree, a path in code, in a macro's arguments or in an attribute's string. The root file lies above all rooms,
//! so its own imports are free.
#![cfg(test)]

mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::path::Path;

use scan::{Import, Modules};

/// More rooms than a newcomer can keep apart. Half would force rooms within rooms; a plan of twice as many fits no
/// page.
const MOST_ROOMS: usize = 20;

/// A room and the rooms that it may use.
pub type Row = (&'static str, &'static [&'static str]);

/// A module with rooms as its children, and the allowed imports between them.
pub struct Tree {
    /// The file of the module, from the repository's root: `crates/agent/src/lib.rs`.
    pub root: &'static str,
    /// The module's path in its crate: empty for `lib.rs`, `["engine"]` for `engine.rs`.
    pub module: &'static [&'static str],
    pub rows: &'static [Row],
    /// Arrows against the order of the rows that stand today. The list only shrinks: an arrow that is gone leaves it.
    pub back: &'static [(&'static str, &'static str)],
    /// Whether the header of each room has to name its neighbours: `May use: …. Used by: ….`
    pub has_headers: bool,
}

/// The measures of a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures {
    pub rooms: usize,
    /// Rooms on the longest way of imports.
    pub levels: usize,
    /// Pairs of rooms: the first imports the second.
    pub arrows: usize,
    /// Arrows that are part of a cycle of rooms, or that the table lists as arrows back.
    pub back: usize,
    /// Files of the largest import cycle within one room; empty without one.
    pub cycle: Vec<String>,
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rooms,
            levels,
            arrows,
            back,
            cycle,
        } = self;
        write!(
            f,
            "{rooms} rooms, {levels} levels, {arrows} arrows, {back} back; largest cycle of files within one room: {}",
            cycle.len()
        )?;
        match cycle.first() {
            Some(first) => write!(f, " ({first}, …)"),
            None => Ok(()),
        }
    }
}

/// The figures of a tree, and one line for each fault.
pub struct Report {
    pub figures: Figures,
    pub faults: Vec<String>,
}

type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

impl Tree {
    /// Checks the files that `read` answers by path. `entries` are the names in the tree's folder, without `.rs`.
    pub fn check(
        &self,
        read: &dyn Fn(&str) -> Option<String>,
        entries: &BTreeSet<String>,
    ) -> Report {
        let modules = Modules::read(self.root, self.module, read);
        let mut faults = self.rooms_without_row(&modules, entries);
        let mut rooms = Graph::new();
        let mut listed = BTreeSet::new();
        let macros = self.exported_macros(&modules, read);
        for module in &modules.all {
            let Some(from) = self.room_of(&module.path) else {
                continue;
            };
            rooms.entry(from).or_default();
            for import in &module.imports {
                let target = match self.arrow(&modules, import) {
                    Target::Root => macros
                        .get(import.to_string().rsplit("::").next().unwrap_or_default())
                        .map_or(Target::Root, |room| Target::Room(room)),
                    target => target,
                };
                match target {
                    Target::Outside => {}
                    Target::Room(to) if to == from => {}
                    Target::Room(to) => {
                        if !self.allows(from, to) {
                            faults.push(format!(
                                "{}:{}: {from} must not use {to} ({import})",
                                module.file, import.line
                            ));
                        }
                        if self.back.contains(&(from, to)) {
                            listed.insert((from, to));
                        } else {
                            rooms.entry(from).or_default().insert(to);
                        }
                    }
                    Target::Root => faults.push(format!(
                        "{}:{}: {from} must not use the root, which lies above all rooms ({import})",
                        module.file, import.line
                    )),
                }
            }
        }
        faults.extend(self.rows_without_import(&rooms));
        let gone = self.back.iter().filter(|arrow| !listed.contains(arrow));
        faults.extend(gone.map(|(from, to)| {
            format!(
                "{}: the arrow back {from} → {to} is gone: remove it from the list",
                self.root
            )
        }));
        if self.has_headers {
            faults.extend(self.headers_without_neighbours(&modules));
        }
        let back = arrows_in_cycles(&rooms);
        faults.extend(
            back.iter()
                .map(|(from, to)| format!("{from} → {to} is part of a cycle of rooms")),
        );
        let count = self.rows.len() + modules.tests_only.len();
        if count > MOST_ROOMS {
            faults.push(format!(
                "{}: {count} rooms, more than {MOST_ROOMS}",
                self.root
            ));
        }
        let figures = Figures {
            rooms: count,
            levels: if back.is_empty() { levels(&rooms) } else { 0 },
            arrows: rooms.values().map(BTreeSet::len).sum::<usize>() + listed.len(),
            back: back.len() + listed.len(),
            cycle: self.largest_cycle(&modules),
        };
        Report { figures, faults }
    }

    /// Exported macros, each with the room that defines it: their path is that of the crate's root.
    fn exported_macros(
        &self,
        modules: &Modules,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> BTreeMap<String, &'static str> {
        let mut macros = BTreeMap::new();
        for module in &modules.all {
            let Some(room) = self.room_of(&module.path) else {
                continue;
            };
            let text = read(&module.file).unwrap_or_default();
            for exported in text.split("#[macro_export]").skip(1) {
                let name = exported.trim_start().strip_prefix("macro_rules! ");
                let name = name.and_then(|name| name.split(' ').next());
                macros.extend(name.map(|name| (name.to_owned(), room)));
            }
        }
        macros
    }

    /// The room of a module path; none for the root and for what lies outside.
    fn room_of(&self, path: &[String]) -> Option<&'static str> {
        let below = path.strip_prefix(&self.module.map_to_owned()[..])?;
        self.named(below.first()?)
    }

    fn named(&self, name: &str) -> Option<&'static str> {
        let mut rows = self.rows.iter().map(|(room, _)| *room);
        rows.find(|room| *room == name)
    }

    fn allows(&self, from: &str, to: &str) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|(room, may)| *room == from && may.contains(&to))
            || self.back.contains(&(from, to))
    }

    /// Where an import leads. A name that the root re-exports leads to the room that defines it.
    fn arrow(&self, modules: &Modules, import: &Import) -> Target {
        let prefix = self.module.map_to_owned();
        let Some(below) = import.path.strip_prefix(&prefix[..]) else {
            return Target::Outside;
        };
        let Some(first) = below.first() else {
            return Target::Root;
        };
        let room = self.named(first).or_else(|| {
            let target = modules.target(&import.path)?;
            self.room_of(&modules.all[target].path)
        });
        room.map_or(Target::Root, Target::Room)
    }

    fn rooms_without_row(&self, modules: &Modules, entries: &BTreeSet<String>) -> Vec<String> {
        let has_place = |name: &&String| {
            self.named(name).is_some() || modules.tests_only.contains(name.as_str())
        };
        let depth = self.module.len();
        let declared = modules
            .all
            .iter()
            .filter(|module| module.path.len() > depth);
        let declared: BTreeSet<&String> = declared.map(|module| &module.path[depth]).collect();
        let unlisted = declared.iter().copied().chain(entries);
        let unlisted: BTreeSet<&String> = unlisted.filter(|name| !has_place(name)).collect();
        let gone = self.rows.iter().map(|(room, _)| *room);
        let gone = gone.filter(|room| !declared.iter().any(|name| name == room));
        let unlisted = unlisted
            .into_iter()
            .map(|name| format!("{}: {name} has no row in the table", self.root));
        let gone = gone.map(|room| format!("{}: the table names {room}, which is gone", self.root));
        unlisted.chain(gone).collect()
    }

    fn rows_without_import(&self, rooms: &Graph<'_>) -> Vec<String> {
        let listed = self
            .rows
            .iter()
            .flat_map(|(from, may)| may.iter().map(move |to| (*from, *to)));
        let unused =
            listed.filter(|(from, to)| !rooms.get(from).is_some_and(|used| used.contains(to)));
        unused
            .map(|(from, to)| format!("{}: no import needs {from} → {to}", self.root))
            .collect()
    }

    /// Rooms with a header that names other neighbours than the table.
    fn headers_without_neighbours(&self, modules: &Modules) -> Vec<String> {
        let list = |rooms: Vec<&str>| {
            rooms
                .iter()
                .map(|room| format!("`{room}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let lines = self.rows.iter().flat_map(|(room, may)| {
            let may_use = match may {
                [] => "May use: no other room.".to_owned(),
                may => format!("May use: {}.", list(may.to_vec())),
            };
            let users = self.rows.iter().filter(|(_, may)| may.contains(room));
            let users: Vec<&str> = users.map(|(user, _)| *user).collect();
            let used_by = (!users.is_empty()).then(|| format!("Used by: {}.", list(users)));
            std::iter::once(may_use)
                .chain(used_by)
                .map(move |line| (*room, line))
        });
        let missing = lines.filter_map(|(room, line)| {
            let mut path = self.module.map_to_owned();
            path.push(room.to_owned());
            let module = modules.all.iter().find(|module| module.path == path)?;
            (!module.header.contains(&line))
                .then(|| format!("{}: the header lacks: {line}", module.file))
        });
        missing.collect()
    }

    /// The files of the largest import cycle within one room.
    fn largest_cycle(&self, modules: &Modules) -> Vec<String> {
        let mut files = Graph::new();
        for module in &modules.all {
            let room = self.room_of(&module.path);
            let targets = module.imports.iter();
            for target in targets.filter_map(|import| modules.target(&import.path)) {
                let target = &modules.all[target];
                if room.is_some()
                    && room == self.room_of(&target.path)
                    && target.file != module.file
                {
                    files.entry(&module.file).or_default().insert(&target.file);
                }
            }
        }
        let reached = reachable(&files);
        let circles = files.keys().map(|file| {
            let mutual = reached[file].iter();
            mutual
                .filter(|other| reached.get(*other).is_some_and(|back| back.contains(file)))
                .map(|file| (*file).to_owned())
                .collect::<Vec<_>>()
        });
        circles
            .reduce(|largest, circle| {
                if circle.len() > largest.len() {
                    circle
                } else {
                    largest
                }
            })
            .unwrap_or_default()
    }
}

enum Target {
    Room(&'static str),
    /// An item of the tree's root file.
    Root,
    /// Another module of the crate, above the tree.
    Outside,
}

trait MapToOwned {
    fn map_to_owned(&self) -> Vec<String>;
}

impl MapToOwned for [&'static str] {
    fn map_to_owned(&self) -> Vec<String> {
        self.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// Each node, and all that it reaches over one edge or more.
fn reachable<'a>(graph: &Graph<'a>) -> Graph<'a> {
    let from = |start: &'a str| {
        let mut found = BTreeSet::new();
        let mut open = vec![start];
        while let Some(next) = open.pop() {
            for to in graph.get(next).into_iter().flatten() {
                if found.insert(*to) {
                    open.push(to);
                }
            }
        }
        found
    };
    graph.keys().map(|start| (*start, from(start))).collect()
}

fn arrows_in_cycles<'a>(graph: &Graph<'a>) -> Vec<(&'a str, &'a str)> {
    let reached = reachable(graph);
    let arrows = graph
        .iter()
        .flat_map(|(from, used)| used.iter().map(move |to| (*from, *to)));
    arrows
        .filter(|(from, to)| reached.get(to).is_some_and(|back| back.contains(from)))
        .collect()
}

/// Nodes on the longest way of a graph without cycles.
fn levels(graph: &Graph<'_>) -> usize {
    fn height<'a>(graph: &Graph<'a>, from: &'a str, known: &mut BTreeMap<&'a str, usize>) -> usize {
        if let Some(height) = known.get(from) {
            return *height;
        }
        let below = graph.get(from).into_iter().flatten();
        let below = below.map(|to| height(graph, to, known)).max();
        let own = below.unwrap_or(0) + 1;
        known.insert(from, own);
        own
    }
    let mut known = BTreeMap::new();
    let heights = graph.keys().map(|from| height(graph, from, &mut known));
    heights.max().unwrap_or(0)
}

/// Checks a tree of the repository.
pub fn check(tree: &Tree) -> Report {
    let root = crate::cargo::root();
    let entries = std::fs::read_dir(root.join(scan::folder(tree.root)));
    let entries = entries.expect("the folder of a tree of rooms");
    let names = entries.map(|entry| entry.expect("the folder can be read").file_name());
    let names = names.map(|name| name.to_string_lossy().trim_end_matches(".rs").to_owned());
    let file = Path::new(tree.root).file_stem().expect("a name");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    // A library may share its folder with a program, which has modules of its own.
    let program = read(&format!(
        "{}/main.rs",
        scan::folder(tree.root).trim_end_matches('/')
    ));
    let is_programs = |name: &str| {
        let program = program
            .as_deref()
            .filter(|_| Path::new(tree.root).ends_with("lib.rs"));
        program.is_some_and(|text| name == "main" || text.contains(&format!("\nmod {name};")))
    };
    let rooms = names.filter(|name| Path::new(name) != Path::new(file) && !is_programs(name));
    tree.check(&read, &rooms.collect())
}

mod tests {
    use super::*;

    const TREE: Tree = Tree {
        root: "made/up/lib.rs",
        module: &[],
        rows: &[("door", &["shop"]), ("shop", &["store"]), ("store", &[])],
        back: &[],
        has_headers: false,
    };

    const GOOD: &[(&str, &str)] = &[
        (
            "made/up/lib.rs",
            "mod door;\nmod shop;\nmod store;\n#[cfg(test)]\nmod fake;\npub use store::Goods;",
        ),
        ("made/up/door.rs", "use crate::shop::{self, Shop as S};"),
        ("made/up/shop.rs", "use crate::Goods;\nmod till;"),
        ("made/up/shop/till.rs", "use super::Shop;"),
        (
            "made/up/store.rs",
            "pub struct Goods;\n#[cfg(test)]\nmod tests { use crate::door; }",
        ),
    ];

    fn checked(tree: &Tree, more: &[(&str, &str)]) -> Report {
        let files: BTreeMap<&str, &str> = GOOD.iter().chain(more).copied().collect();
        let read = |path: &str| files.get(path).map(|text| (*text).to_owned());
        let entries = ["door", "shop", "store", "fake"].map(str::to_owned);
        tree.check(&read, &entries.into())
    }

    #[test]
    fn imports_in_the_table_pass_and_are_counted() {
        let report = checked(&TREE, &[]);
        assert_eq!(report.faults, [""; 0]);
        let figures = Figures {
            rooms: 4,
            levels: 3,
            arrows: 2,
            back: 0,
            cycle: Vec::new(),
        };
        assert_eq!(report.figures, figures);
    }

    #[test]
    fn a_planted_import_is_refused_with_its_file_and_line() {
        let plants = [
            "\nuse crate::door::{Handle, lock};",
            "\nuse super::door;",
            "\nfn f() { crate::door::open() }",
            "\nfn f() { format!(\"{}\", super::door::open()); }",
            "\n#[serde(with = \"crate::door\")] struct S;",
            "\nmod inner { use super::super::door::Handle; }",
            "\nfn f() -> Box<dyn crate::door::Open> { todo!() }",
        ];
        for plant in plants {
            let report = checked(&TREE, &[("made/up/store.rs", plant)]);
            let expected = "made/up/store.rs:2: store must not use door";
            assert!(
                report
                    .faults
                    .iter()
                    .any(|fault| fault.starts_with(expected)),
                "{plant}: {:?}",
                report.faults
            );
            assert!(report.figures.back > 0, "{plant}");
        }
    }

    #[test]
    fn what_only_tests_compile_is_no_import() {
        let plants = [
            "#[cfg(test)]\nuse crate::door;",
            "#[test]\nfn f() { crate::door::open() }",
            "fn f() { #[cfg(test)]\nif crate::door::open() {} }",
            "struct S { #[cfg(all(test, unix))]\na: crate::door::A }",
            "enum E { #[cfg(test)]\nA(crate::door::A) }",
            "fn f(x: u8) { match x { #[cfg(test)]\n0 => crate::door::open(), _ => {} } }",
            "impl S { #[cfg(test)]\nfn f() { crate::door::open() } }",
        ];
        for plant in plants {
            let with_goods = format!("pub struct Goods;\n{plant}");
            let report = checked(&TREE, &[("made/up/store.rs", &with_goods)]);
            assert_eq!(report.faults, [""; 0], "{plant}");
        }
        let kept = "pub struct Goods;\n#[cfg(not(test))]\nuse crate::door;";
        assert!(
            !checked(&TREE, &[("made/up/store.rs", kept)])
                .faults
                .is_empty()
        );
    }

    #[test]
    fn the_table_names_all_rooms_and_no_import_that_is_gone() {
        let rows: &[Row] = &[
            ("door", &["shop", "store"]),
            ("shop", &["store"]),
            ("attic", &[]),
        ];
        let report = checked(&Tree { rows, ..TREE }, &[]);
        let faults = [
            "made/up/lib.rs: store has no row in the table",
            "made/up/lib.rs: the table names attic, which is gone",
            "made/up/lib.rs: no import needs door → store",
        ];
        for fault in faults {
            assert!(
                report.faults.contains(&fault.to_owned()),
                "{:?}",
                report.faults
            );
        }
    }

    #[test]
    fn an_exported_macro_belongs_to_its_room() {
        let door = "use crate::shop::Shop;\n#[macro_export]\nmacro_rules! knock { () => {} }";
        let store = "pub struct Goods;\nfn f() { crate::knock!() }";
        let plants = [("made/up/door.rs", door), ("made/up/store.rs", store)];
        let faults = checked(&TREE, &plants).faults;
        assert_eq!(
            faults[0],
            "made/up/store.rs:2: store must not use door (crate::knock)"
        );
    }

    #[test]
    fn a_listed_arrow_back_passes_until_it_is_gone() {
        let tree = Tree {
            back: &[("store", "door")],
            ..TREE
        };
        let plant = ("made/up/store.rs", "pub struct Goods;\nuse crate::door;");
        let report = checked(&tree, &[plant]);
        assert_eq!(report.faults, [""; 0]);
        assert_eq!((report.figures.back, report.figures.levels), (1, 3));
        let faults = checked(&tree, &[]).faults;
        assert_eq!(
            faults,
            ["made/up/lib.rs: the arrow back store → door is gone: remove it from the list"]
        );
    }

    #[test]
    fn the_header_of_a_room_names_its_neighbours_if_it_has_to() {
        let tree = Tree {
            has_headers: true,
            ..TREE
        };
        let headers = [
            (
                "made/up/door.rs",
                "//! May use: `shop`.\nuse crate::shop::Shop;",
            ),
            (
                "made/up/shop.rs",
                "//! May use:\n//! `store`. Used by: `door`.\nuse crate::Goods;",
            ),
            (
                "made/up/store.rs",
                "//! May use: no other room.\npub struct Goods;",
            ),
        ];
        let faults = checked(&tree, &headers).faults;
        assert_eq!(
            faults,
            ["made/up/store.rs: the header lacks: Used by: `shop`."]
        );
    }

    #[test]
    fn a_room_may_not_use_the_root_and_a_tree_may_lie_inside_a_crate() {
        let plant = "pub struct Goods;\nfn f() { crate::main_loop() }";
        let faults = checked(&TREE, &[("made/up/store.rs", plant)]).faults;
        assert!(faults[0].starts_with("made/up/store.rs:2: store must not use the root"));

        let inner = Tree {
            root: "made/up/door.rs",
            module: &["door"],
            rows: &[("bell", &["wire"]), ("wire", &[])],
            back: &[],
            has_headers: false,
        };
        let files = [
            ("made/up/door.rs", "mod bell; mod wire;"),
            ("made/up/door/bell.rs", "use super::wire; use crate::shop;"),
            ("made/up/door/wire.rs", "use super::bell::Ring;"),
        ];
        let read = |path: &str| {
            let mut files = files.iter();
            files
                .find(|(name, _)| *name == path)
                .map(|(_, text)| (*text).to_owned())
        };
        let report = inner.check(&read, &BTreeSet::new());
        assert_eq!(
            report.faults[0],
            "made/up/door/wire.rs:1: wire must not use bell (crate::door::bell::Ring)"
        );
        assert_eq!(report.figures.back, 2);
    }

    #[test]
    fn the_largest_cycle_of_files_lies_within_one_room() {
        let more = [
            (
                "made/up/shop.rs",
                "use crate::Goods;\nmod till;\nmod shelf;\npub use till::Till;\nfn f() { shelf::fill() }",
            ),
            ("made/up/shop/till.rs", "use super::shelf;"),
            ("made/up/shop/shelf.rs", "use super::Till;"),
        ];
        // The re-export leads to the file of `Till`, so the room's own file is no part of the cycle.
        let cycle = checked(&TREE, &more).figures.cycle;
        assert_eq!(cycle, ["made/up/shop/shelf.rs", "made/up/shop/till.rs"]);
    }
}
