//! Typed queries: what `http` may read of the controller's state.

use std::collections::BTreeSet;

use divvy_api::v1::{self, Error, MigPlanned, MigWanted};
use divvy_core::{JobId, Wait};

use crate::auth::Caller;
use crate::controller::admission::{array, projects};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::change::SuggestedChange;
use crate::controller::lifecycle::{change, container};
use crate::controller::mailbox::Milestone;
use crate::controller::query::estimate::StartEstimator;
use crate::controller::query::exec_target::ExecTarget;
use crate::controller::query::metrics::Page;
use crate::controller::query::reference::JobRef;
use crate::controller::query::summary::JobSummary;
use crate::controller::query::view::JobView;
use crate::controller::query::why::WhyQuery;
use crate::controller::query::{
    LiveUsage, caller, exec_target, mig_preview, reference, summary, why,
};
use crate::controller::state::State;
use crate::controller::{claims, mig, query};
use crate::journal::StoreError;
use crate::model::job::Job;

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

    /// Commands that bring about these changes, word by word; none for what this caller may not do.
    pub fn commands(&self, tries: &[Option<SuggestedChange>], by: &Caller) -> Vec<Vec<String>> {
        change::commands(self.state, self.io, tries, by)
    }

    /// What brings a container into the slice of a job that holds one.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for no such job, [`ErrorCode::Conflict`] for one that holds nothing now.
    pub fn docker_args(&self, reference: &str) -> Result<v1::DockerArgs, Error> {
        container::docker_args(&self.state.jobs, &self.state.mig, self.io, reference)
    }

    /// The inside of a job that runs.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for no such job, [`ErrorCode::Conflict`] for one that does not run now.
    pub fn exec_target(&self, reference: &str) -> Result<ExecTarget, Error> {
        exec_target::exec_target(&self.state.jobs, self.io, reference)
    }

    /// The claim that a job is or was.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] where it is none.
    pub fn get_claim(&self, id: JobId) -> Result<v1::HeldClaim, Error> {
        claims::view::get_claim(self.state, self.io, id)
    }

    pub fn gpus(&self) -> Vec<v1::Gpu> {
        query::gpus(self.state, self.io)
    }

    /// One job, active or ended.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`], and [`ErrorCode::Conflict`] for a name that several have.
    pub fn job(&self, reference: &str) -> Result<v1::Job, Error> {
        query::job(self.state, self.io, reference)
    }

    /// Jobs that have not ended, oldest first.
    pub fn job_summaries(&self) -> Vec<JobSummary> {
        summary::job_summaries(self.state, self.io)
    }

    /// The same, with what there is to know about when it starts.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn job_with_estimate(
        &self,
        reference: &str,
    ) -> Result<(v1::Job, Option<StartEstimator>), Error> {
        query::job_with_estimate(self.state, self.io, reference)
    }

    /// Claims that are held, oldest first.
    pub fn list_claims(&self) -> Vec<v1::HeldClaim> {
        claims::view::list_claims(self.state, self.io)
    }

    /// Every project and where it stands, by name.
    pub fn list_projects(&self) -> Vec<v1::Project> {
        projects::list_projects(self.state, self.io)
    }

    pub fn list_queues(&self) -> Vec<v1::Queue> {
        query::list_queues(self.state, self.io)
    }

    /// Numbers of the jobs that [`Queries::job_summaries`] shows, for adding the others to them.
    pub fn living_ids(&self) -> BTreeSet<JobId> {
        query::living_ids(&self.state.jobs)
    }

    /// Everything that a page of metrics shows.
    pub fn metrics(&self) -> Page {
        query::metrics_page(self.state, self.fx, self.io)
    }

    /// Every instance, by GPU and place.
    pub fn mig_instances(&self) -> Vec<v1::MigInstance> {
        mig::view::mig_instances(&self.state.mig, &self.state.gpus)
    }

    /// The job of an array to wait for next: the first that is not there yet.
    pub fn next_of_array(&self, array: JobId, milestone: Milestone) -> Option<JobRef> {
        array::next_of_array(&self.state.jobs, array, milestone)
    }

    pub fn node(&self) -> v1::Node {
        query::node(&self.state.jobs, self.io)
    }

    /// Why nothing can be given out; `None` where it can.
    pub fn not_ready_reason(&self) -> Option<String> {
        query::not_ready_reason(&self.state.gpus, &self.state.disk)
    }

    /// What a job's refusals of GPU memory looked like.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn oom(&self, reference: &str) -> Result<v1::Oom, Error> {
        query::oom(self.state, self.io, reference)
    }

    /// Whose a job is.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn owner(&self, id: JobId) -> Result<Option<u32>, StoreError> {
        caller::owner(&self.state.jobs, self.io, id)
    }

    /// Every place where an instance may lie on a GPU in MIG mode, those first that are taken first; none for other GPUs.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for a GPU that is not here.
    pub fn placements(&self, gpu: &str) -> Result<Vec<v1::MigPlacement>, Error> {
        claims::view::placements(&self.state.gpus, gpu)
    }

    /// Where instances of these profiles would go, all of them together.
    ///
    /// # Errors
    /// [`ErrorCode::WouldWait`] where they do not all fit now, [`ErrorCode::NeverFits`] where they never will.
    pub fn preview_mig(&self, wanted: &MigWanted) -> Result<Vec<MigPlanned>, Error> {
        mig_preview::preview_mig(self.state, self.io, wanted)
    }

    /// What a job, or each of an array, runs, without its options.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn program(&self, meant: JobRef) -> Result<String, Error> {
        query::program(self.state, self.io, meant)
    }

    /// What a reference means to whoever may see it all.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`], and [`ErrorCode::Conflict`] for a name that several have.
    pub fn resolve(&self, reference: &str) -> Result<JobRef, Error> {
        reference::resolve(&self.state.jobs, self.io, reference)
    }

    /// What this caller means, and the uid of its submitter, who has all jobs of an array. `last`, and a name that several have,
    /// mean the caller's own first.
    ///
    /// # Errors
    /// As [`Queries::job`].
    pub fn resolve_for_caller(&self, reference: &str, caller: u32) -> Result<(JobRef, u32), Error> {
        caller::resolve_for_caller(&self.state.jobs, self.io, reference, caller)
    }

    /// The jobs of an array that run.
    pub fn running_of_array(&self, array: JobId) -> Vec<JobRef> {
        array::running_of_array(&self.state.jobs, array)
    }

    /// The GPUs that are served.
    pub fn served(&self) -> Vec<divvy_core::Gpu> {
        query::served(self.state)
    }

    /// The job that says how an array stands: one that has not ended, else the first by index without exit code 0, else the first.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] where no job of it is kept.
    pub fn verdict_of_array(&self, array: JobId) -> Result<v1::Job, Error> {
        array::verdict_of_array(self.state, self.io, array)
    }

    /// What the cycle knows of a job, active or not.
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
