//! Planted bugs: the model must find each one.

use crate::explore::explore;
use crate::quiet;
use crate::world::MoveBudget;
use setu_core::planted::Planted;

/// A bug counts as not found after this many steps.
const LIMIT: usize = 5_000_000;

fn kills(bug: Planted, budget: MoveBudget) {
    let found = explore(&format!("{bug:?}"), budget, Some(bug), Some(LIMIT));
    let why = found.violations.first().or(found.stuck.as_ref());
    println!("{}", why.map_or("nothing was found", |w| w.lines().next().unwrap_or_default()));
    assert!(why.is_some(), "{bug:?} was not found");
}

macro_rules! found {
    ($($name:ident: $bug:ident with $budget:expr;)*) => {
        $(#[test]
        fn $name() {
            kills(Planted::$bug, $budget);
        })*
    };
}

fn one_lost() -> MoveBudget {
    MoveBudget { losses: 1, ..quiet() }
}

fn old_cache() -> MoveBudget {
    MoveBudget { stale: 1, ..one_lost() }
}

found! {
    a_delete_that_names_no_uid_is_found: DeleteWithoutUid with one_lost();
    a_ready_before_the_quorum_read_is_found: ReadyBeforeGate with old_cache();
    a_deadline_on_an_old_cache_is_found: DeadlineOnCache with MoveBudget { stale: 1, ..quiet() };
    a_verdict_before_the_cleanup_is_found: VerdictBeforeCleanup with quiet();
    a_create_before_the_journal_is_found: CreateWithoutJournal with quiet();
    random_names_are_found: RandomClaimNames with MoveBudget { lost: 1, ..quiet() };
    an_old_journal_that_is_acted_on_is_found: ActOnStaleJournal with old_cache();
    a_lost_race_that_is_acted_on_is_found: ActOnConflict with quiet();
    an_ignored_admission_id_is_found: AdmissionIdIgnored with MoveBudget { quota_losses: 1, reservations: 2, ..quiet() };
    claims_without_a_journal_that_are_not_asked_are_found: AttemptFromJournalOnly with MoveBudget { erasures: 1, ..quiet() };
    nodes_taken_from_under_running_pods_are_found: DeleteWhileAdmitted with MoveBudget { evictions: 1, ..quiet() };
    a_ready_on_the_word_of_the_journal_is_found: ReadyFromJournalAlone with one_lost();
    an_attempt_on_top_of_another_is_found: PlanOnCachedAbsence with MoveBudget { stale: 1, ..quiet() };
    a_ready_that_stands_during_the_rollback_is_found: ReadyStandsWhileDeleting with quiet();
    an_attempt_judged_by_defaults_is_found: JudgedUnread with MoveBudget { unread: 1, ..quiet() };
    a_reservation_that_is_forgotten_is_found: ReleasedForGood with MoveBudget { quota_losses: 1, reservations: 2, ..quiet() };
}
