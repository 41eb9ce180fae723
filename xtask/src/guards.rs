//! Deadlocks by a lock guard in a condition: no body of an `if let`, `while let` or `match` takes a lock that its condition
//! holds.
//!
//! A temporary in the condition lives through the body. Clippy's `significant_drop_in_scrutinee` sees plain conditions, and no chain
//! of `&&`. This test reads syntax alone, by names in a crate. A lock has the name of the function that gives its guard, or of the
//! field that is locked.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{
    Expr, ExprMatch, ExprMethodCall, ImplItemFn, ItemFn, Member, ReturnType, Signature, Type,
};

use crate::sources::sources;

type Names = BTreeSet<String>;

/// The calls and locks of all functions with one name, in one crate.
#[derive(Default, Clone)]
struct Function {
    calls: Names,
    takes: Names,
}

#[derive(Default)]
struct Crate {
    /// Functions that give a guard.
    givers: Names,
    functions: BTreeMap<String, Function>,
}

/// Whether a guard of a lock is part of the type.
fn gives_guard(signature: &Signature) -> bool {
    #[derive(Default)]
    struct Types(bool);
    impl Visit<'_> for Types {
        fn visit_type(&mut self, found: &Type) {
            if let Type::Path(path) = found
                && let Some(last) = path.path.segments.last()
            {
                let name = last.ident.to_string();
                self.0 |= ["MutexGuard", "RwLockReadGuard", "RwLockWriteGuard"].contains(&&*name);
            }
            visit::visit_type(self, found);
        }
    }
    let mut types = Types::default();
    if let ReturnType::Type(_, given) = &signature.output {
        types.visit_type(given);
    }
    types.0
}

/// The last name of a path or field.
fn last_name(of: &Expr) -> Option<String> {
    match of {
        Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        Expr::Field(field) => Some(match &field.member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }),
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Paren(inner) => last_name(&inner.expr),
        Expr::Reference(inner) => last_name(&inner.expr),
        _ => None,
    }
}

/// Collects an expression's calls, and the locks that it takes. `now` leaves out closures, which run when the guard may be gone, and blocks,
/// whose temporaries end with them.
struct Reader<'a> {
    givers: &'a Names,
    now: bool,
    /// Of the last method call.
    line: usize,
    found: Function,
}

impl<'a> Reader<'a> {
    fn read(givers: &'a Names, now: bool, read: impl FnOnce(&mut Self)) -> Self {
        let found = Function::default();
        let mut reader = Reader {
            givers,
            now,
            line: 0,
            found,
        };
        read(&mut reader);
        reader
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_expr(&mut self, expression: &Expr) {
        match expression {
            Expr::Closure(_) | Expr::Block(_) | Expr::Async(_) if self.now => return,
            Expr::Call(call) => {
                self.found.calls.extend(last_name(&call.func));
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        self.line = call.method.span().start().line;
        if name == "lock" && call.args.is_empty() {
            self.found.takes.extend(last_name(&call.receiver));
        }
        if self.givers.contains(&name) {
            self.found.takes.insert(name.clone());
        }
        self.found.calls.insert(name);
        visit::visit_expr_method_call(self, call);
    }
}

/// The bodies under a condition that holds a guard: where, and which locks its body must not take.
struct Conditions<'a> {
    of: &'a Crate,
    found: Vec<(usize, String, String)>,
}

impl Conditions<'_> {
    /// A guard that is the condition's own value is bound by a name, and its reader sees it.
    fn is_bound(condition: &Expr, givers: &Names) -> bool {
        match condition {
            Expr::Try(inner) => Self::is_bound(&inner.expr, givers),
            Expr::MethodCall(call) => {
                call.method == "lock" || givers.contains(&call.method.to_string())
            }
            _ => false,
        }
    }

    fn check(&mut self, condition: &Expr, body: impl FnOnce(&mut Reader<'_>)) {
        let given = |reader: &mut Reader<'_>| reader.visit_expr(condition);
        let held = Reader::read(&self.of.givers, true, given);
        let (line, held) = (held.line, held.found.takes);
        if held.is_empty() || Self::is_bound(condition, &self.of.givers) {
            return;
        }
        let body = Reader::read(&self.of.givers, false, body).found;
        for lock in held {
            let taken = body.takes.contains(&lock).then(|| lock.clone());
            let taker = body.calls.iter().find(|name| {
                let function = self.of.functions.get(*name);
                function.is_some_and(|function| function.takes.contains(&lock))
            });
            if let Some(taker) = taken.as_ref().or(taker) {
                self.found.push((line, lock.clone(), taker.clone()));
            }
        }
    }

    /// The parts of a chain that bind something.
    fn chain<'e>(condition: &'e Expr, lets: &mut Vec<&'e Expr>) {
        match condition {
            Expr::Let(bound) => lets.push(&bound.expr),
            Expr::Binary(both) => {
                Self::chain(&both.left, lets);
                Self::chain(&both.right, lets);
            }
            _ => {}
        }
    }
}

impl Visit<'_> for Conditions<'_> {
    fn visit_expr(&mut self, expression: &Expr) {
        let (condition, body) = match expression {
            Expr::If(found) => (&found.cond, &found.then_branch),
            Expr::While(found) => (&found.cond, &found.body),
            Expr::Match(ExprMatch { expr, arms, .. }) => {
                self.check(expr, |reader| {
                    arms.iter().for_each(|arm| reader.visit_arm(arm))
                });
                return visit::visit_expr(self, expression);
            }
            _ => return visit::visit_expr(self, expression),
        };
        let mut lets = Vec::new();
        Self::chain(condition, &mut lets);
        for bound in lets {
            self.check(bound, |reader| reader.visit_block(body));
        }
        visit::visit_expr(self, expression);
    }
}

#[derive(Default)]
struct Functions<'a>(Vec<(&'a Signature, &'a syn::Block)>);

impl<'a> Visit<'a> for Functions<'a> {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        self.0.push((&function.sig, &function.block));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        self.0.push((&function.sig, &function.block));
        visit::visit_impl_item_fn(self, function);
    }
}

impl Crate {
    fn of(files: &[(String, syn::File)]) -> Self {
        let mut functions = Functions::default();
        files
            .iter()
            .for_each(|(_, file)| functions.visit_file(file));
        let givers = functions
            .0
            .iter()
            .filter(|(signature, _)| gives_guard(signature));
        let mut this = Crate {
            givers: givers
                .map(|(signature, _)| signature.ident.to_string())
                .collect(),
            functions: BTreeMap::new(),
        };
        for (signature, body) in functions.0 {
            let read = Reader::read(&this.givers, false, |reader| reader.visit_block(body));
            let read = read.found;
            // `drop(value)` is the standard library's.
            if signature.ident == "drop" {
                continue;
            }
            let known = this
                .functions
                .entry(signature.ident.to_string())
                .or_default();
            known.calls.extend(read.calls);
            known.takes.extend(read.takes);
        }
        this.follow_calls();
        this
    }

    /// A function takes what the functions take that it calls.
    fn follow_calls(&mut self) {
        let mut callers: BTreeMap<String, Names> = BTreeMap::new();
        for (name, function) in &self.functions {
            let known = |called: &&String| self.functions.contains_key(*called);
            for called in function.calls.iter().filter(known) {
                callers
                    .entry(called.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
        let mut changed: Vec<String> = self.functions.keys().cloned().collect();
        while let Some(name) = changed.pop() {
            let taken = self.functions[&name].takes.clone();
            for caller in callers.get(&name).into_iter().flatten() {
                let function = self.functions.get_mut(caller).expect("a function");
                let size = function.takes.len();
                function.takes.extend(taken.iter().cloned());
                if function.takes.len() > size {
                    changed.push(caller.clone());
                }
            }
        }
    }
}

/// "file:line: lock, taken again by" of each such body.
fn held_over_bodies(files: Vec<(String, String)>) -> Vec<String> {
    let mut crates: BTreeMap<String, Vec<(String, syn::File)>> = BTreeMap::new();
    for (path, text) in files {
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let name = path.split('/').take(2).collect::<Vec<_>>().join("/");
        crates.entry(name).or_default().push((path, parsed));
    }
    let mut found = Vec::new();
    for files in crates.values() {
        let of = Crate::of(files);
        for (path, file) in files {
            let mut conditions = Conditions {
                of: &of,
                found: Vec::new(),
            };
            conditions.visit_file(file);
            let lines = conditions.found.into_iter();
            found.extend(lines.map(|(line, lock, taker)| {
                format!("{path}:{line}: the guard of `{lock}` lives through a body that takes it again: `{taker}`")
            }));
        }
    }
    found
}

fn of_text(text: &str) -> Vec<String> {
    held_over_bodies(vec![("crates/one/src/lib.rs".into(), text.into())])
}

#[test]
fn no_body_takes_a_lock_that_its_condition_holds() {
    let files = sources(&["crates"]);
    let crate_of = |path: &str| path.split('/').nth(1).map(str::to_owned);
    let locking: BTreeSet<_> = files
        .iter()
        .filter(|(_, text)| text.contains("MutexGuard") || text.contains(".lock()"))
        .map(|(path, _)| crate_of(path))
        .collect();
    // To read all files would take twice as long.
    let is_meant = |(path, _): &(String, String)| {
        path.contains("/src/") && !path.contains("/tests") && locking.contains(&crate_of(path))
    };
    let files: Vec<_> = files.into_iter().filter(is_meant).collect();
    assert!(files.len() > 200, "only {} files", files.len());
    assert_eq!(held_over_bodies(files), Vec::<String>::new());
}

#[test]
fn a_guard_in_a_chain_is_seen_through_the_functions_that_its_body_calls() {
    let function =
        "fn books(&self) -> MutexGuard<'_, u8> { todo() } fn bind(&self) { self.books().add(1); }";
    let fault = "fn bad(&self) { if self.is_on() && let Some(one) = self.books().get() { self.outer(one) } }";
    let outer = "fn outer(&self, one: u8) { self.bind() }";
    let found = of_text(&format!("impl One {{ {function} {fault} {outer} }}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("`books`") && found[0].contains("`outer`"),
        "{found:?}"
    );
    let sound = "fn good(&self) { let one = self.books().get(); if let Some(one) = one { self.outer(one) } }";
    assert_eq!(
        of_text(&format!("impl One {{ {function} {sound} {outer} }}")),
        Vec::<String>::new()
    );
}

#[test]
fn a_lock_of_a_field_is_seen_in_a_match_and_in_a_loop() {
    for body in [
        "match self.list.lock().unwrap().pop() { Some(_) => self.list.lock().unwrap().push(1), None => {} }",
        "while let Some(one) = self.list.lock().unwrap().pop() { self.list.lock().unwrap().push(one) }",
    ] {
        let found = of_text(&format!("impl One {{ fn bad(&self) {{ {body} }} }}"));
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
