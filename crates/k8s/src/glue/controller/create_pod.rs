//! Creation of a task's pod, and of the Secret that it reads.

use std::rc::Rc;

use divvy_clearml::facts::Facts;
use divvy_clearml::server::{Container, Status, Task};
use k8s_openapi::api::core::v1::Pod;

use super::{GlueController, OperationError};
use crate::glue::context::ServedQueue;
use crate::glue::objects::CreateOutcome;
use crate::glue::pod::{self, TaskPodSpec, arguments, secret_data};
use crate::glue::record::{Record, name};

impl GlueController {
    /// Makes a task's pod, behind the Secret that it reads.
    pub(super) async fn make(&mut self, record: &Record) -> Result<bool, OperationError> {
        let context = Rc::clone(&self.context);
        let (Some(task), Some(served)) = (
            context.server.task(&record.task).await?,
            context.served(&record.queue_id),
        ) else {
            return Ok(false);
        };
        let facts = self.names(&record.task).await?;
        let made = match self.dress(record, served, &task, &facts).await? {
            Ok(pod) => context.objects.make_pod(&pod).await,
            Err(why) => CreateOutcome::Never(why),
        };
        match made {
            CreateOutcome::Created => {
                tracing::info!(
                    task = record.task,
                    queue = served.queue.name,
                    "ClearML task: created its pod"
                );
                Ok(true)
            }
            CreateOutcome::Later(why) => {
                self.wait(&record.task, &why).await?;
                Ok(false)
            }
            CreateOutcome::Never(why) => {
                let why = format!("Kubernetes rejected the task's pod: {why}");
                let seen = task.status;
                let message = format!("Changed by divvy {}", context.worker);
                context
                    .append_to_log(&record.task, "ERROR", &format!("{why}\n"))
                    .await;
                if seen == Status::Queued {
                    context
                        .server
                        .failed_unstarted(&record.task, &why, &message)
                        .await?;
                }
                Ok(true)
            }
        }
    }

    /// Display names of a task, its user and its project; asked once.
    async fn names(&mut self, task: &str) -> Result<Facts, OperationError> {
        let context = Rc::clone(&self.context);
        if let Some(facts) = self.tasks.get(task).and_then(|memory| memory.facts.clone()) {
            return Ok(facts);
        }
        let facts = match context.server.names(&[task.to_owned()]).await {
            Ok(mut names) => names.remove(task).unwrap_or_default(),
            Err(error) if error.passes() => return Err(error.into()),
            // Labels are no reason not to run it.
            Err(error) => {
                tracing::warn!(task, %error, "cannot read the names of the task's user and project");
                Facts::default()
            }
        };
        if let Some(memory) = self.tasks.get_mut(task) {
            memory.facts = Some(facts.clone());
        }
        Ok(facts)
    }

    /// The pod of a task, and its Secret is there; or why there can be none.
    async fn dress(
        &mut self,
        record: &Record,
        served: &ServedQueue,
        task: &Task,
        facts: &Facts,
    ) -> Result<Result<Pod, String>, OperationError> {
        let context = Rc::clone(&self.context);
        let setup = &context.setup;
        let wants = task.container.clone().unwrap_or_default();
        let own = wants
            .image
            .as_deref()
            .map(str::trim)
            .filter(|image| !image.is_empty() && !setup.no_override);
        let of_task = wants.arguments.as_deref().map(str::trim);
        let of_task = of_task.filter(|line| !line.is_empty() && !setup.no_override);
        // The defaults stand in for what a task without an image leaves out, as under the stock glue.
        let (env, left_out) = match (own, of_task) {
            (_, Some(line)) => arguments(line),
            (Some(_), None) => arguments(""),
            (None, None) => arguments(&setup.arguments.join(" ")),
        };
        let files = context.values.files(&served.queue);
        let child = context.child(&record.task);
        let asked = TaskPodSpec {
            record,
            facts,
            holder: &context.objects.holder,
            image: own,
            default_image: &setup.image,
            env: &env,
            worker: &child,
            files: &files,
            token: context.token.is_some(),
            pull: setup.pull,
        };
        let pod = match pod::pod(
            &context.manifest,
            &context.values.layers(&served.queue),
            &asked,
        ) {
            Ok(pod) => pod,
            Err(wrong) => return Ok(Err(wrong.to_string())),
        };
        let script = context.script(&record.task, wants.setup_shell_script.as_deref());
        let token = context.token.as_ref().map(|token| token.expose());
        let data = secret_data(script, context.config.clone(), token, &files);
        if let CreateOutcome::Never(why) = context.objects.fill(record, data).await? {
            return Ok(Err(format!("its Secret: {why}")));
        }
        // A pod that is refused for a while is dressed at every look.
        let memory = self.tasks.get_mut(&record.task);
        if memory.is_some_and(|memory| std::mem::replace(&mut memory.announced, true)) {
            return Ok(Ok(pod));
        }
        let image = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.containers.first()?.image.clone());
        let mut line = format!(
            "task {} pulled from {} by worker {}\nRunning Task {} in pod {}/{}: {}\n",
            record.task,
            record.queue_id,
            context.worker,
            record.task,
            context.objects.namespace,
            name(&record.task),
            image.as_deref().unwrap_or_default(),
        );
        if !left_out.is_empty() {
            let words = left_out.join(" ");
            line.push_str(&format!(
                "ignored container arguments (a pod supports only -e and --env): {words}\n"
            ));
        }
        context.append_to_log(&record.task, "INFO", &line).await;
        if own.is_none() {
            let container = Container { image, ..wants };
            if let Err(error) = context.server.set_container(&record.task, &container).await {
                tracing::warn!(task = record.task, %error, "cannot write the task's container");
            }
        }
        Ok(Ok(pod))
    }
}
