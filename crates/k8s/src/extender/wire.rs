//! The scheduler's request and the answer, as `k8s.io/kube-scheduler/extender/v1` has them: Go's field names, which have
//! capital letters.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The highest score that an extender gives (`MaxExtenderPriority`). Of kube-scheduler's extender API
/// (k8s.io/kube-scheduler).
pub const HIGHEST: u32 = 10;

/// `ExtenderArgs`, checked.
#[derive(Debug)]
pub struct Question {
    pub pod: Pod,
    /// Names of the nodes that the scheduler's filters have left.
    pub nodes: Vec<String>,
}

/// Why a body is no question.
#[derive(Debug, thiserror::Error)]
pub enum NoQuestion {
    #[error("cannot parse the body as ExtenderArgs: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the request has no {0}")]
    Lacks(&'static str),
    #[error(
        "the request has whole nodes instead of their names: set `nodeCacheCapable: true` for this extender in the \
         scheduler's configuration"
    )]
    WholeNodes,
    #[error("the request names {0} nodes; the most are {MOST_NODES}")]
    TooManyNodes(usize),
}

/// The most nodes that Kubernetes supports in a cluster are 5,000.
pub const MOST_NODES: usize = 20_000;

#[derive(Deserialize)]
struct Args {
    #[serde(rename = "Pod", alias = "pod")]
    pod: Option<Pod>,
    #[serde(rename = "Nodes", alias = "nodes")]
    nodes: Option<Value>,
    #[serde(rename = "NodeNames", alias = "nodeNames", alias = "nodenames")]
    node_names: Option<Vec<String>>,
}

impl Question {
    /// The question in a body.
    ///
    /// # Errors
    /// The body is no question, or one about more than this extender answers.
    pub fn parse(body: &[u8]) -> Result<Self, NoQuestion> {
        let args: Args = serde_json::from_slice(body)?;
        let pod = args.pod.ok_or(NoQuestion::Lacks("Pod"))?;
        let nodes = match (args.node_names, args.nodes) {
            (Some(names), _) => names,
            (None, Some(_)) => return Err(NoQuestion::WholeNodes),
            (None, None) => return Err(NoQuestion::Lacks("NodeNames")),
        };
        match nodes.len() {
            0..=MOST_NODES => Ok(Self { pod, nodes }),
            many => Err(NoQuestion::TooManyNodes(many)),
        }
    }
}

/// `HostPriority`: the score of a node. The scheduler counts 0 for nodes that the list leaves out.
#[derive(Debug, Serialize)]
pub struct HostPriority<'a> {
    #[serde(rename = "Host")]
    pub host: &'a str,
    #[serde(rename = "Score")]
    pub score: u32,
}

/// The list for a chosen node; for none, every node has 0.
pub fn answer(chosen: Option<&str>) -> String {
    let list: Vec<HostPriority<'_>> = chosen
        .map(|host| HostPriority {
            host,
            score: HIGHEST,
        })
        .into_iter()
        .collect();
    // Texts and numbers are always JSON.
    serde_json::to_string(&list).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(body: &Value) -> String {
        Question::parse(body.to_string().as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_no_question_is_refused_with_the_reason() {
        let garbage = Question::parse(b"\x00\xff{").unwrap_err().to_string();
        assert!(garbage.contains("ExtenderArgs"), "{garbage}");
        assert_eq!(refused(&json!({})), "the request has no Pod");
        let bare = json!({ "Pod": { "metadata": {} } });
        assert_eq!(refused(&bare), "the request has no NodeNames");
        let whole =
            json!({ "Pod": { "metadata": {} }, "Nodes": { "items": [] }, "NodeNames": null });
        assert!(refused(&whole).contains("nodeCacheCapable: true"));
        let many: Vec<String> = (0..=MOST_NODES).map(|at| at.to_string()).collect();
        let many = json!({ "Pod": { "metadata": {} }, "NodeNames": many });
        assert_eq!(
            refused(&many),
            "the request names 20001 nodes; the most are 20000"
        );
        let typed =
            json!({ "Pod": { "metadata": {}, "spec": { "containers": 3 } }, "NodeNames": [] });
        assert!(refused(&typed).contains("ExtenderArgs"));
    }

    #[test]
    fn the_chosen_node_has_ten_and_others_have_nothing() {
        assert_eq!(answer(Some("a")), r#"[{"Host":"a","Score":10}]"#);
        assert_eq!(answer(None), "[]");
    }
}
