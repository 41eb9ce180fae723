//! Typed queries: what `http` may read of the controller's state.

use std::collections::BTreeSet;
use std::sync::Arc;

use divvy_api::v1::{self, Error, MigPlanned, MigWanted};
use divvy_core::{GpuUuid, JobId, Wait};

use crate::auth::Caller;
use crate::controller::admission::{array, projects};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::change::SuggestedChange;
use crate::controller::lifecycle::{change, container, selection};
use crate::controller::query::exec_target::ExecTarget;
use crate::controller::query::folds::{self, ListItem};
use crate::controller::query::job_page::{LivingPage, Matches};
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::metrics::Page;
use crate::controller::query::view::JobView;
use crate::controller::query::why::WhyQuery;
use crate::controller::query::{
    LiveUsage, board, caller, estimate, exec_target, job_page, mig_preview, summary, why,
};
use crate::controller::reference::{self, JobRef};
use crate::controller::request::{Act, ActOutcome, Milestone, Selection};
use crate::controller::state::State;
use crate::controller::state::estimate::{EstimateInput, StartEstimator};
use crate::controller::{claims, mig, query};
use crate::journal::Span;
use crate::model::job::Job;
use crate::model::job_filter::{Field, JobFilter, Key};

/// Read access to the state between two rounds.
pub struct Queries<'a> {
    pub(in crate::controller) state: &'a State,
    pub(in crate::controller) io: &'a Io,
    pub(in crate::controller) fx: &'a Effects,
}

impl Queries<'_> {
    /// An array's jobs that have not ended, oldest first.
    pub fn array_summaries(&self, array: JobId) -> Vec<JobSummary> {
        summary::array_summaries(self.state, self.io, array)
    }

    /// The board, without the start times of waiting jobs.
    pub fn board(&self) -> v1::Board {
        board::board(self.state, self.io)
    }

    /// The input of start estimates.
    pub fn estimates(&self) -> Arc<EstimateInput> {
        estimate::input(self.state, self.io)
    }

    /// Commands that make these changes, one word per element; empty for a change that the caller may not make.
    pub fn commands(&self, tries: &[Option<SuggestedChange>], by: &Caller) -> Vec<Vec<String>> {
        change::commands(self.state, self.io, tries, by)
    }

    /// The engine's flags that bring a container into the slice of a job.
    ///
    /// # Errors
    /// `ErrorCode::NotFound` if there is no such job, `ErrorCode::Conflict` if it holds nothing now.
    pub fn docker_args(&self, reference: &str) -> Result<v1::DockerArgs, Error> {
        container::docker_args(&self.state.jobs, &self.state.mig, self.io, reference)
    }

    /// The exec target of a running job.
    ///
    /// # Errors
    /// `ErrorCode::NotFound` if there is no such job, `ErrorCode::Conflict` for one that does not run now.
    pub fn exec_target(&self, reference: &str) -> Result<ExecTarget, Error> {
        exec_target::exec_target(&self.state.jobs, self.io, reference)
    }

    /// The claim that a job stands for, active or ended.
    ///
    /// # Errors
    /// `ErrorCode::NotFound` if the job is no claim.
    pub fn get_claim(&self, id: JobId) -> Result<v1::HeldClaim, Error> {
        claims::view::get_claim(self.state, self.io, id)
    }

    /// The index and UUID of a GPU that this index or UUID names.
    pub fn gpu_identity(&self, name: &str) -> Option<(u32, GpuUuid)> {
        let mut gpus = self.state.gpus.devices.iter().map(|device| &device.gpu);
        let named =
            |gpu: &&divvy_core::Gpu| gpu.index.to_string() == name || gpu.uuid.to_string() == name;
        gpus.find(named).map(|gpu| (gpu.index, gpu.uuid.clone()))
    }

    pub fn gpus(&self) -> Vec<v1::Gpu> {
        query::gpus(self.state, self.io)
    }

    /// One job, active or ended.
    ///
    /// # Errors
    /// `ErrorCode::NotFound`, and `ErrorCode::Conflict` for a name of several jobs.
    pub fn job(&self, reference: &str) -> Result<v1::Job, Error> {
        query::job(self.state, self.io, reference)
    }

    /// The jobs that match and have not ended, in this part of the list by number. `known`: the matches of an earlier
    /// page.
    ///
    /// # Errors
    /// `ErrorCode::Usage` for a GPU that this node does not have.
    pub fn job_page(
        &self,
        filter: &JobFilter,
        span: Span,
        known: Option<Matches>,
    ) -> Result<LivingPage, Error> {
        job_page::job_page(self.state, self.io, filter, span, known)
    }

    /// The values by which the jobs that match and have not ended are sorted.
    ///
    /// # Errors
    /// As [`Queries::job_page`].
    pub fn job_keys(
        &self,
        filter: &JobFilter,
        by: Field,
    ) -> Result<Vec<(JobId, Option<Key>)>, Error> {
        job_page::job_keys(self.state, self.io, filter, by)
    }

    /// Those of these jobs that match and have not ended, in the order of the list.
    pub fn job_rows(&self, ids: &[JobId], filter: &JobFilter) -> Vec<JobSummary> {
        job_page::job_rows(self.state, self.io, ids, filter)
    }

    /// The rows of these jobs with folded arrays, in their order.
    pub fn folded_rows(&self, ids: &[JobId]) -> Vec<JobId> {
        folds::rows(self.state, ids)
    }

    /// The items of such rows, as far as they match and have not ended.
    pub fn folded_items(&self, rows: &[JobId], filter: &JobFilter) -> Vec<ListItem> {
        folds::items(self.state, self.io, rows, filter)
    }

    /// As [`Queries::job`], with the estimator of its start.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn job_with_estimate(
        &self,
        reference: &str,
    ) -> Result<(v1::Job, Option<StartEstimator>), Error> {
        query::job_with_estimate(self.state, self.io, reference)
    }

    /// Whether another daemon holds a part of a GPU. A look at its entry may be wrong for a moment: memory of its job
    /// counts twice until the entry says that it is used, and an entry that is being written counts as a whole GPU.
    pub fn others_hold(&self) -> bool {
        let mut gpus = self.state.gpus.devices.iter();
        gpus.any(|device| !device.gpu.elsewhere.is_empty())
    }

    /// Claims that are held and that the caller may see, oldest first.
    pub fn list_claims(&self, by: &Caller) -> Vec<v1::HeldClaim> {
        claims::view::list_claims(self.state, self.io, by)
    }

    /// Every project with its quota status, by name.
    pub fn list_projects(&self) -> Vec<v1::Project> {
        projects::list_projects(self.state, self.io)
    }

    /// The configuration in force, with the origin of each value.
    pub fn config(&self) -> Vec<v1::ConfigValue> {
        let config = &self.io.config;
        config.configured.report(&config.needs_restart)
    }

    pub fn list_queues(&self) -> Vec<v1::Queue> {
        query::list_queues(self.state, self.io)
    }

    /// The content of the metrics page.
    /// UUIDs of the GPUs that Divvy manages, with those that do not respond now.
    pub fn managed_gpu_uuids(&self) -> BTreeSet<String> {
        let devices = self.state.gpus.devices.iter();
        let managed = devices.filter(|device| device.is_managed);
        managed.map(|device| device.gpu.uuid.to_string()).collect()
    }

    pub fn metrics(&self) -> Page {
        query::metrics_page(self.state, self.fx, self.io)
    }

    /// Every instance, by GPU and placement.
    pub fn mig_instances(&self) -> Vec<v1::MigInstance> {
        mig::view::mig_instances(&self.state.mig, &self.state.gpus)
    }

    /// The next job of an array to wait for: the first that has not reached the milestone.
    pub fn next_of_array(&self, array: JobId, milestone: Milestone) -> Option<JobRef> {
        array::next_of_array(&self.state.jobs, array, milestone)
    }

    pub fn node(&self) -> v1::Node {
        query::node(self.state, self.io)
    }

    /// Why the node cannot start jobs; `None` if it can.
    pub fn not_ready_reason(&self) -> Option<String> {
        query::not_ready_reason(&self.state.gpus, &self.state.disk)
    }

    /// The refused allocations of a job.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn oom(&self, reference: &str) -> Result<v1::Oom, Error> {
        query::oom(self.state, self.io, reference)
    }

    /// Every placement of an instance on a GPU in MIG mode, in the order in which the planner prefers them. Empty for
    /// other GPUs.
    ///
    /// # Errors
    /// `ErrorCode::NotFound` for a GPU that this node does not have.
    pub fn placements(&self, gpu: &str) -> Result<Vec<v1::MigPlacement>, Error> {
        claims::view::placements(&self.state.gpus, gpu)
    }

    /// The placements of instances of these profiles, all of them together.
    ///
    /// # Errors
    /// `ErrorCode::WouldWait` if they do not all fit now, `ErrorCode::NeverFits` if they never will.
    pub fn preview_mig(&self, wanted: &MigWanted) -> Result<Vec<MigPlanned>, Error> {
        mig_preview::preview_mig(self.state, self.io, wanted)
    }

    /// The program of a job, or of the jobs of an array, without its options.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn program(&self, meant: JobRef) -> Result<String, Error> {
        query::program(self.state, self.io, meant)
    }

    /// What a reference means to a caller that may see all jobs.
    ///
    /// # Errors
    /// `ErrorCode::NotFound`, and `ErrorCode::Conflict` for a name of several jobs.
    pub fn resolve(&self, reference: &str) -> Result<JobRef, Error> {
        reference::resolve(&self.state.jobs, self.io, reference)
    }

    /// The job or array that a caller's reference means, and its owner's uid. One user owns all jobs of an array.
    /// `last` and ambiguous names mean the caller's own jobs first.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn resolve_for_caller(&self, reference: &str, caller: u32) -> Result<(JobRef, u32), Error> {
        caller::resolve_for_caller(&self.state.jobs, self.io, reference, caller)
    }

    /// The jobs of a selection that an act would be applied to, oldest first.
    ///
    /// # Errors
    /// `ErrorCode::Usage` for a GPU that this node does not have.
    pub fn selected(&self, selection: &Selection, act: &Act) -> Result<Vec<JobSummary>, Error> {
        let jobs = selection::selected(self.state, selection, act)?;
        let jobs: Vec<JobId> = jobs.iter().map(|active| active.job.id).collect();
        Ok(summary::summaries_of(self.state, self.io, &jobs))
    }

    /// The jobs of a selection whose memory is to be offloaded, or why the caller may not.
    ///
    /// # Errors
    /// As [`Queries::selected`].
    pub fn offloaded(
        &self,
        selection: &Selection,
        by: &Caller,
    ) -> Result<ActOutcome<JobRef>, Error> {
        selection::offloaded(self.state, selection, by)
    }

    /// These jobs, without those that have ended.
    pub fn summaries(&self, jobs: &[JobId]) -> Vec<JobSummary> {
        summary::summaries_of(self.state, self.io, jobs)
    }

    /// Whether this job has not ended.
    pub fn lives(&self, job: JobRef) -> bool {
        let JobRef::Job { id, .. } = job else {
            return false;
        };
        let active = self.state.jobs.active.get(&id);
        active.is_some_and(|active| active.job.state.outcome().is_none())
    }

    /// The GPUs that Divvy manages and that are available.
    pub fn served(&self) -> Vec<divvy_core::Gpu> {
        query::served(self.state)
    }

    /// The job that decides the array's result: one that has not ended, else the first by index that failed, else the
    /// first.
    ///
    /// # Errors
    /// `ErrorCode::NotFound` if the journal has no job of the array.
    pub fn verdict_of_array(&self, array: JobId) -> Result<v1::Job, Error> {
        query::verdict_of_array(self.state, self.io, array)
    }

    /// What the controller knows of a job, active or not.
    pub fn view(&self, job: &Job, now: Option<&LiveUsage<'_>>, wait: Option<&Wait>) -> JobView {
        query::view(self.state, self.io, job, now, wait)
    }

    /// Why a job waits.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn why(&self, reference: &str) -> Result<WhyQuery, Error> {
        why::why(self.state, self.io, reference)
    }
}
