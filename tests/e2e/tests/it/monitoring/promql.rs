//! Reads metrics and labels out of expressions of PromQL, and out of a page. It knows what the rules and boards use.

use std::collections::{BTreeMap, BTreeSet};

/// Words of PromQL that stand where a metric can stand: operators, and aggregations before their grouping.
const KEYWORDS: [&str; 11] = [
    "and", "or", "unless", "offset", "bool", "atan2", "sum", "count", "min", "max", "avg",
];

/// Words that a list of labels in parentheses follows.
const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// What an expression names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Each metric with the labels that it is selected by.
    pub metrics: Vec<(String, Vec<String>)>,
    /// Labels by which series are grouped or matched.
    pub grouping: BTreeSet<String>,
}

/// The metrics and labels of an expression.
pub fn named(expression: &str) -> Named {
    let plain = without_strings(expression);
    let mut named = Named::default();
    let mut rest = plain.as_str();
    while let Some(first) = rest.chars().next() {
        if first == '[' {
            rest = rest.split_once(']').map_or("", |(_, after)| after);
        } else if first.is_ascii_digit() {
            // 1e9, and the duration after `offset`.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else if is_of_name(first) {
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after.trim_start();
            if GROUPING.contains(&word) && rest.starts_with('(') {
                let (list, after) = rest[1..].split_once(')').expect("a list has an end");
                named.grouping.extend(names(list));
                rest = after;
            } else if !rest.starts_with('(') && !KEYWORDS.contains(&word) {
                let matchers = rest.strip_prefix('{').map(|inner| {
                    let (list, after) = inner.split_once('}').expect("matchers have an end");
                    rest = after;
                    names(list)
                });
                named
                    .metrics
                    .push((word.to_owned(), matchers.unwrap_or_default()));
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    named
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// The names of a list of labels or matchers without their values.
fn names(list: &str) -> Vec<String> {
    let names = list.split(',').map(|item| {
        let end = item.find(['=', '!']).unwrap_or(item.len());
        item[..end].trim().to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The expression with empty strings.
fn without_strings(expression: &str) -> String {
    let (mut plain, mut is_quoted, mut is_escaped) = (String::new(), false, false);
    for c in expression.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            _ => plain.push(c),
        }
    }
    plain
}

/// The label of `{{ $labels.NAME }}` for each such place of a template.
pub fn labels_of_template(template: &str) -> BTreeSet<String> {
    let places = template.split("$labels.").skip(1);
    places
        .map(|place| place.split(|c| !is_of_name(c)).next().unwrap_or_default())
        .map(str::to_owned)
        .collect()
}

/// The metrics of a page, with all labels that their series have.
pub fn metrics(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a sample");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = crate::metrics::labels(labels);
        let names = labels.into_iter().map(|(name, _)| name);
        metrics.entry(name.to_owned()).or_default().extend(names);
    }
    metrics
}

#[test]
fn names_are_found_in_expressions_of_all_forms() {
    let of = |expression: &str| {
        let Named { metrics, grouping } = named(expression);
        let metrics: Vec<String> = metrics
            .into_iter()
            .map(|(metric, labels)| format!("{metric}:{}", labels.join(",")))
            .collect();
        (
            metrics.join(" "),
            grouping.into_iter().collect::<Vec<_>>().join(","),
        )
    };
    for (expression, metrics, grouping) in [
        ("up{job=\"divvy\"} == 0", "up:job", ""),
        (
            "sum by (a, b) (rate(x_total{k=~\"by (z)|{w}\",l!=\"\\\"\"}[5m])) > 1e9",
            "x_total:k,l",
            "a,b",
        ),
        ("time() - x > 2 * 3600", "x:", ""),
        (
            "x > 0 unless x offset 15m or y * on (UUID) group_left (hostname) z{p=\"1\"}",
            "x: x: y: z:p",
            "UUID,hostname",
        ),
    ] {
        assert_eq!(
            of(expression),
            (metrics.to_owned(), grouping.to_owned()),
            "{expression}"
        );
    }
    let labels = labels_of_template("{{ or $labels.node $labels.instance }}: {{ $labels.job }}");
    assert_eq!(
        labels.into_iter().collect::<Vec<_>>(),
        ["instance", "job", "node"]
    );
}
