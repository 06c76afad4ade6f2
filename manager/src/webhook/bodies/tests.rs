//! Bodies that get room, and bodies that give it up.

use super::*;

const MOST: usize = 4 << 20;

fn source_of(last: u8) -> Source {
    Source::from_address([10, 0, 0, last].into())
}

fn is_given_up(permit: &BodyPermit<'_>) -> bool {
    permit.given_up.is_cancelled()
}

/// As many heads of this source as fit into half of the limit.
fn half_of_heads(bodies: &Bodies, of: Source) -> Vec<BodyPermit<'_>> {
    (0..MOST / 2 / HEAD_BYTES)
        .map(|_| bodies.begin_body(of).unwrap())
        .collect()
}

fn given_up(permits: &[BodyPermit<'_>]) -> usize {
    permits.iter().filter(|permit| is_given_up(permit)).count()
}

#[tokio::test(start_paused = true)]
async fn slow_body_makes_room_for_others() {
    let bodies = Bodies::new(MOST);
    let slow = [1, 2].map(|last| bodies.begin_body(source_of(last)).unwrap());
    for permit in &slow {
        permit.take(MOST / 2 - 2 * HEAD_BYTES).await;
    }
    let quick = bodies.begin_body(source_of(3)).unwrap();
    let begun = Instant::now();
    quick.take(1 << 20).await;
    assert!(begun.elapsed() < SLOW_BODY_TIME * 3, "{:?}", begun.elapsed());
    let [first, second] = &slow;
    assert!(is_given_up(first));
    assert!(!is_given_up(second), "one was enough");
}

#[tokio::test(start_paused = true)]
async fn body_that_is_complete_or_quick_stays() {
    let bodies = Bodies::new(MOST);
    let complete = bodies.begin_body(source_of(1)).unwrap();
    complete.take(MOST / 2 - 3 * HEAD_BYTES).await;
    complete.complete();
    tokio::time::advance(SLOW_BODY_TIME * 2).await;
    let quick = bodies.begin_body(source_of(2)).unwrap();
    quick.take(MOST / 2 - 3 * HEAD_BYTES).await;
    let waits = bodies.begin_body(source_of(3)).unwrap();
    assert!(!waits.try_take(1 << 20));
    assert!(!is_given_up(&complete) && !is_given_up(&quick));
    drop(quick);
    assert!(waits.try_take(1 << 20));
}

#[tokio::test]
async fn source_has_half_of_the_bound() {
    let bodies = Bodies::new(MOST);
    let one = bodies.begin_body(source_of(1)).unwrap();
    assert!(!one.try_take(MOST / 2));
    assert!(one.try_take(MOST / 2 - HEAD_BYTES));
    one.complete();
    assert!(bodies.begin_body(source_of(1)).is_none());
    let other = bodies.begin_body(source_of(2)).unwrap();
    assert!(other.try_take(MOST / 4));
    drop((one, other));
    assert_eq!(bodies.lock_state().used, 0);
}

#[test]
fn head_takes_place_of_oldest_silent_body_of_largest_source() {
    let bodies = Bodies::new(MOST);
    let few = bodies.begin_body(source_of(1)).unwrap();
    let [first, second] = [(2, 1), (3, 2)].map(|(last, fewer)| -> Vec<_> {
        let heads = MOST / 2 / HEAD_BYTES - fewer;
        (0..heads)
            .map(|_| bodies.begin_body(source_of(last)).unwrap())
            .collect()
    });
    assert!(first[0].try_take(1));
    let last = bodies.begin_body(source_of(1)).unwrap();
    assert_eq!((given_up(&first), given_up(&second)), (0, 0), "there was room");
    let new = bodies.begin_body(source_of(1)).unwrap();
    assert!(is_given_up(&first[1]), "the oldest without bytes");
    assert_eq!((given_up(&first), given_up(&second)), (1, 0));
    assert!(![&few, &last, &new].into_iter().any(is_given_up));
    assert!(bodies.lock_state().used <= MOST);
}

#[test]
fn source_at_its_half_gives_up_its_own_bodies_alone() {
    let bodies = Bodies::new(MOST);
    let other = bodies.begin_body(source_of(1)).unwrap();
    let permits = half_of_heads(&bodies, source_of(2));
    let _new = bodies.begin_body(source_of(2)).unwrap();
    assert!(is_given_up(&permits[0]) && !is_given_up(&other));
    assert_eq!(given_up(&permits), 1);
}

/// Otherwise two sources that send reviews faster than they are decided fill all the memory.
#[test]
fn bodies_that_wait_for_their_turn_make_room_for_source_with_fewer() {
    let bodies = Bodies::new(MOST);
    let [second, third] = [2, 3].map(|last| half_of_heads(&bodies, source_of(last)));
    for permit in second.iter().chain(&third) {
        permit.complete();
    }
    let first = bodies.begin_body(source_of(1)).unwrap();
    assert_eq!(given_up(&second) + given_up(&third), 1);
    assert!(
        [&second, &third]
            .iter()
            .any(|permits| is_given_up(&permits[permits.len() - 1])),
        "the newest, which is decided last"
    );
    assert!(first.try_take(MOST / 4));
    assert!(!is_given_up(&first) && bodies.lock_state().used <= MOST);
}

#[test]
fn source_with_most_bodies_that_wait_gets_no_place_for_another() {
    let bodies = Bodies::new(MOST);
    let crowd = half_of_heads(&bodies, source_of(2));
    for permit in &crowd {
        permit.complete();
    }
    assert!(bodies.begin_body(source_of(2)).is_none());
    assert_eq!(given_up(&crowd), 0);
}

#[tokio::test]
async fn bodies_that_are_being_decided_are_never_given_up() {
    let bodies = Bodies::new(MOST);
    let mut decided = Vec::new();
    for last in [2, 3] {
        let permit = bodies.begin_body(source_of(last)).unwrap();
        permit.take(MOST / 2 - HEAD_BYTES).await;
        permit.complete();
        decided.push((permit.wait_to_decide().await.unwrap(), permit));
    }
    assert!(bodies.begin_body(source_of(1)).is_none());
    assert!(decided.iter().all(|(_, permit)| !is_given_up(permit)));
}

#[tokio::test]
async fn body_that_was_given_up_is_not_decided() {
    let bodies = Bodies::new(MOST);
    let [second, third] = [2, 3].map(|last| half_of_heads(&bodies, source_of(last)));
    for permit in second.iter().chain(&third) {
        permit.complete();
    }
    let _first = bodies.begin_body(source_of(1)).unwrap();
    let mut all = second.iter().chain(&third);
    let given_up = all.find(|permit| is_given_up(permit)).unwrap();
    assert!(given_up.wait_to_decide().await.is_none());
}

/// Attackers replace their heads before any of them is slow.
#[tokio::test(start_paused = true)]
async fn arriving_body_gets_room_from_sources_with_more_bodies_at_once() {
    let bodies = Bodies::new(MOST);
    let body = bodies.begin_body(source_of(1)).unwrap();
    let mut crowd = half_of_heads(&bodies, source_of(2));
    crowd.extend((1..MOST / 2 / HEAD_BYTES).map(|_| bodies.begin_body(source_of(3)).unwrap()));
    for permit in &crowd[..10] {
        permit.complete();
    }
    assert!(body.try_take(MOST / 4));
    assert!(given_up(&crowd) >= MOST / 4 / HEAD_BYTES);
    assert_eq!(given_up(&crowd[..10]), 0);
    assert!(!is_given_up(&body) && bodies.lock_state().used <= MOST);
}

#[tokio::test(start_paused = true)]
async fn decisions_of_two_sources_leave_turns_for_a_third() {
    let bodies = Bodies::new(MOST);
    let mut held = Vec::new();
    for last in [2, 3] {
        for _ in 0..MAX_DECISIONS_OF_SOURCE {
            let permit = bodies.begin_body(source_of(last)).unwrap();
            permit.complete();
            held.push((permit.wait_to_decide().await.unwrap(), permit));
        }
        let waits = bodies.begin_body(source_of(last)).unwrap();
        let waited = tokio::time::timeout(SLOW_BODY_TIME, waits.wait_to_decide()).await;
        assert!(waited.is_err(), "its source has all its turns");
    }
    let permit = bodies.begin_body(source_of(1)).unwrap();
    assert!(
        tokio::time::timeout(SLOW_BODY_TIME, permit.wait_to_decide())
            .await
            .is_ok()
    );
    held.pop();
    let permit = bodies.begin_body(source_of(3)).unwrap();
    assert!(
        tokio::time::timeout(SLOW_BODY_TIME, permit.wait_to_decide())
            .await
            .is_ok()
    );
}
