//! A board, its rows and panels, and their form in Grafana's JSON (schema 39, Grafana 10 and newer).

use serde_json::{Map, Value, json};

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// The data source of every panel and variable.
fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

pub struct Board {
    pub uid: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// Takes the place of `@` in expressions.
    pub selector: &'static str,
    pub variables: Vec<Variable>,
    pub rows: Vec<Row>,
}

/// A variable with the values of a label.
pub struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    pub values: &'static str,
}

pub struct Row {
    pub title: &'static str,
    pub panels: Vec<Panel>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stat,
    Lines,
    Stack,
    Table,
}

pub struct Panel {
    kind: Kind,
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    width: u32,
    height: u32,
    /// The variable for each of whose values Grafana repeats the panel.
    repeat: Option<&'static str>,
    queries: Vec<Query>,
}

struct Query {
    expression: &'static str,
    legend: &'static str,
    /// A dashed line that is not part of the stack.
    is_bound: bool,
}

/// One number.
pub fn stat(width: u32, title: &'static str, unit: &'static str) -> Panel {
    Panel::new(Kind::Stat, width, 4, title, unit)
}

/// Lines over time.
pub fn lines(width: u32, title: &'static str, unit: &'static str) -> Panel {
    Panel::new(Kind::Lines, width, 8, title, unit)
}

/// Areas on top of each other, over time.
pub fn stack(width: u32, title: &'static str, unit: &'static str) -> Panel {
    Panel::new(Kind::Stack, width, 8, title, unit)
}

/// The last values of several queries, by their common labels. The legend of a query is its column.
pub fn table(title: &'static str, unit: &'static str) -> Panel {
    Panel::new(Kind::Table, COLUMNS, 8, title, unit)
}

impl Panel {
    fn new(kind: Kind, width: u32, height: u32, title: &'static str, unit: &'static str) -> Self {
        Self {
            kind,
            title,
            description: "",
            unit,
            width,
            height,
            repeat: None,
            queries: Vec::new(),
        }
    }

    pub fn about(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub fn query(mut self, expression: &'static str, legend: &'static str) -> Self {
        self.queries.push(Query {
            expression,
            legend,
            is_bound: false,
        });
        self
    }

    /// A line that bounds the others, such as a limit.
    pub fn bound(mut self, expression: &'static str, legend: &'static str) -> Self {
        self.queries.push(Query {
            expression,
            legend,
            is_bound: true,
        });
        self
    }

    pub fn repeat(mut self, variable: &'static str) -> Self {
        self.repeat = Some(variable);
        self
    }

    fn to_json(&self, id: u32, (x, y): (u32, u32), selector: &str) -> Value {
        let kind = match self.kind {
            Kind::Stat => "stat",
            Kind::Lines | Kind::Stack => "timeseries",
            Kind::Table => "table",
        };
        let mut panel = json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": datasource(),
            "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height },
            "fieldConfig": { "defaults": self.defaults(), "overrides": self.overrides() },
            "targets": self.targets(selector),
            "options": self.options(),
        });
        if let Some(variable) = self.repeat {
            panel["repeat"] = json!(variable);
            panel["repeatDirection"] = json!("h");
            panel["maxPerRow"] = json!(COLUMNS / self.width);
        }
        if self.kind == Kind::Table {
            panel["transformations"] = self.transformations();
        }
        panel
    }

    fn defaults(&self) -> Value {
        let mut defaults = json!({ "unit": self.unit });
        if self.unit == "percentunit" {
            (defaults["min"], defaults["max"]) = (json!(0), json!(1));
        }
        match self.kind {
            Kind::Stat | Kind::Table => {}
            Kind::Lines => defaults["custom"] = json!({ "fillOpacity": 0 }),
            Kind::Stack => {
                defaults["min"] = json!(0);
                defaults["custom"] = json!({ "stacking": { "mode": "normal" }, "fillOpacity": 30 });
            }
        }
        defaults
    }

    fn overrides(&self) -> Value {
        let bounds = self.queries.iter().zip('A'..);
        let bounds = bounds.filter(|(query, _)| query.is_bound);
        let dashed = bounds.map(|(_, letter)| {
            json!({
                "matcher": { "id": "byFrameRefID", "options": letter.to_string() },
                "properties": [
                    { "id": "custom.stacking", "value": { "mode": "none" } },
                    { "id": "custom.fillOpacity", "value": 0 },
                    { "id": "custom.lineStyle", "value": { "fill": "dash", "dash": [8, 8] } },
                ],
            })
        });
        dashed.collect()
    }

    fn targets(&self, selector: &str) -> Value {
        let is_now = matches!(self.kind, Kind::Stat | Kind::Table);
        let queries = self.queries.iter().zip('A'..).map(|(query, letter)| {
            let mut target = json!({
                "refId": letter.to_string(),
                "datasource": datasource(),
                "expr": query.expression.replace('@', selector),
                "legendFormat": query.legend,
            });
            if is_now {
                target["instant"] = json!(true);
            }
            if self.kind == Kind::Table {
                target["format"] = json!("table");
            }
            target
        });
        queries.collect()
    }

    fn options(&self) -> Value {
        match self.kind {
            Kind::Stat => json!({ "reduceOptions": { "calcs": ["lastNotNull"] } }),
            Kind::Table => json!({}),
            Kind::Lines | Kind::Stack => json!({
                "legend": { "displayMode": "list", "placement": "bottom" },
                "tooltip": { "mode": "multi" },
            }),
        }
    }

    fn transformations(&self) -> Value {
        let named = self.queries.iter().zip('A'..);
        let named: Map<String, Value> = named
            .map(|(query, letter)| (format!("Value #{letter}"), json!(query.legend)))
            .collect();
        json!([
            { "id": "merge", "options": {} },
            { "id": "organize", "options": { "excludeByName": { "Time": true }, "renameByName": named } },
        ])
    }
}

impl Board {
    pub fn to_json(&self) -> Value {
        let mut variables = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {},
        })];
        variables.extend(
            self.variables
                .iter()
                .map(|variable| variable.to_json(self.selector)),
        );
        json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["divvy", "gpu"],
            "timezone": "browser",
            "schemaVersion": 39,
            "version": 1,
            "editable": true,
            "refresh": "30s",
            "time": { "from": "now-6h", "to": "now" },
            "annotations": { "list": [] },
            "links": [{
                "title": "Divvy", "type": "dashboards", "tags": ["divvy"], "asDropdown": true, "keepTime": true,
            }],
            "templating": { "list": variables },
            "panels": self.panels(),
        })
    }

    /// The panels of a row from left to right, in as many lines as they need.
    fn panels(&self) -> Vec<Value> {
        let mut panels: Vec<Value> = Vec::new();
        let (mut id, mut y) = (0, 0);
        for row in &self.rows {
            id += 1;
            panels.push(json!({
                "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
                "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
            }));
            y += 1;
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > COLUMNS {
                    (x, y, height) = (0, y + height, 0);
                }
                id += 1;
                panels.push(panel.to_json(id, (x, y), self.selector));
                x += panel.width;
                height = height.max(panel.height);
            }
            y += height;
        }
        panels
    }
}

impl Variable {
    fn to_json(&self, selector: &str) -> Value {
        let query = self.values.replace('@', selector);
        json!({
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": datasource(),
            "query": { "query": query, "refId": self.name },
            "definition": query,
            "refresh": 2,
            "multi": true,
            "includeAll": true,
            "allValue": ".*",
            "sort": 1,
            "current": { "text": "All", "value": "$__all" },
        })
    }
}
