//! Routes of another scheduler's claims: hold, show, release. An answer waits for what has to be made.

use crate::controller::request::Milestone;
use std::time::Duration;

use axum::Extension;
use divvy_api::v1::{self, Error, ErrorCode, JobState};
use divvy_core::JobId;

use super::body::{ApiError, Body, Path};
use super::{Answer, Api, internal, list};
use crate::auth::Caller;
use crate::controller::mailbox::Message;
use crate::host::account::UserAccount;
use crate::model::claim::is_contended;

/// How long an answer waits for MIG instances to be made, or for leftovers to go: less than the kubelet waits for its
/// plugin (45 s, `PluginClientTimeout` of pkg/kubelet/cm/dra/plugin).
const PATIENCE: Duration = Duration::from_secs(30);

/// Within this time, another daemon publishes the memory that a job of it has just allocated: two of its observations,
/// of which it makes four a second in the mean. So half could miss it, and double would delay each pod's start.
const PUBLISHED: Duration = Duration::from_millis(600);

pub async fn claims(api: Api, Extension(caller): Extension<Caller>) -> Answer<v1::HeldClaim> {
    let claims = api
        .mailbox
        .query(move |queries| Ok(queries.list_claims(&caller)));
    list("ClaimList", claims.await?)
}

pub async fn hold(
    api: Api,
    Extension(caller): Extension<Caller>,
    Path(uid): Path<String>,
    Body(claim): Body<v1::Claim>,
) -> Answer<v1::HeldClaim> {
    let uid_of_caller = caller.account.uid;
    let caller = owned(&api, caller, claim.owner.as_deref()).await?;
    let maker = (caller.account.uid != uid_of_caller).then_some(uid_of_caller);
    // The memory of unmanaged processes now decides whether there is room.
    api.observer.wait_for_fresh_sample().await;
    let hold = || {
        let (uid, claim, by) = (
            uid.clone(),
            Box::new(claim.clone()),
            Box::new(caller.clone()),
        );
        api.mailbox.request(|reply| Message::HoldClaim {
            uid,
            claim,
            by,
            maker,
            reply,
        })
    };
    let id = match hold().await {
        Err(error)
            if error.code == ErrorCode::WouldWait
                && (is_contended(&error) || others_hold(&api).await) =>
        {
            tokio::time::sleep(PUBLISHED).await;
            api.observer.wait_for_fresh_sample().await;
            hold().await?
        }
        held => held?,
    };
    let held = reached(&api, id, Milestone::Bound).await?;
    match held.state {
        JobState::Running => list("ClaimList", vec![held]),
        JobState::Queued | JobState::Starting => {
            let seconds = PATIENCE.as_secs();
            let why = format!("claim {} is not ready after {seconds} s", held.uid);
            Err(Error::new(ErrorCode::TimedOut, why)
                .hint("repeat the call: the daemon continues to prepare the claim")
                .into())
        }
        JobState::Stopping | JobState::Ended => {
            let why = held
                .problem
                .unwrap_or_else(|| "it was released in the meantime".to_owned());
            let why = format!("claim {} is not allocated: {why}", held.uid);
            Err(Error::new(ErrorCode::LaunchFailed, why)
                .hint("all its devices are released; repeat the call")
                .into())
        }
    }
}

async fn others_hold(api: &Api) -> bool {
    let queried = api.mailbox.query(|queries| Ok(queries.others_hold()));
    queried.await.unwrap_or_default()
}

/// The caller with the account that the claim counts for.
async fn owned(api: &Api, caller: Caller, owner: Option<&str>) -> Result<Caller, ApiError> {
    let Some(owner) = owner else {
        return Ok(caller);
    };
    if owner == caller.account.name || owner == caller.account.uid.to_string() {
        return Ok(caller);
    }
    if api.rules.get().is_private() {
        let why = format!(
            "this daemon serves {} alone, and not {owner:?}",
            caller.account.name
        );
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("leave the owner out, or use the system's daemon as root")
            .into());
    }
    let name = owner.to_owned();
    // The user database may be on the network.
    let found = api.budget.run(move || match name.parse::<u32>() {
        // A node need not know the users of its engine by name.
        Ok(uid) => match UserAccount::with_uid(uid)? {
            None => UserAccount::lookup(uid, uid).map(Some),
            known => Ok(known),
        },
        Err(_) => UserAccount::by_name(&name),
    });
    let found = found.await?.map_err(|error| internal(&error))?;
    let account = found.ok_or_else(|| {
        Error::new(
            ErrorCode::NotFound,
            format!("the user database has no user {owner:?}"),
        )
        .hint("list the users: getent passwd")
    })?;
    Ok(Caller { account, ..caller })
}

pub async fn release(
    api: Api,
    Extension(caller): Extension<Caller>,
    Path(uid): Path<String>,
) -> Answer<v1::HeldClaim> {
    let by = Box::new(caller);
    let released = api
        .mailbox
        .request(|reply| Message::ReleaseClaim { uid, by, reply });
    let Some(id) = released.await? else {
        return list("ClaimList", Vec::new());
    };
    list(
        "ClaimList",
        vec![reached(&api, id, Milestone::Released).await?],
    )
}

pub async fn placements(api: Api, Path(gpu): Path<String>) -> Answer<v1::MigPlacement> {
    let placements = api.mailbox.query(move |queries| queries.placements(&gpu));
    list("MigPlacementList", placements.await?)
}

/// The claim once it is there, or as it is when that takes too long.
async fn reached(api: &Api, id: JobId, milestone: Milestone) -> Result<v1::HeldClaim, Error> {
    let wait = api.mailbox.request(|reply| Message::Wait {
        reference: id.to_string(),
        milestone,
        reply,
    });
    if let Ok(there) = tokio::time::timeout(PATIENCE, wait).await {
        let _job: v1::Job = there?;
    }
    api.mailbox
        .query(move |queries| queries.get_claim(id))
        .await
}
