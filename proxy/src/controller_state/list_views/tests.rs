use super::*;

/// A reader of ConfigMaps in all namespaces, for tests in which any reader will do.
pub(crate) const READER: Reader<'_> = Reader {
    user_agent: b"manager",
    representation: Representation::Object,
    group: "",
    version: "v1",
    resource: "configmaps",
    namespace: "",
    label_selector: "",
    field_selector: "",
};

/// The relation of the version from which a watch resumes to the watch's view. The watch is not opened.
pub(crate) fn resumed_as(list_views: &Arc<ListViews>, reader: &Reader<'_>, view: &[RequestEdit]) -> KnownView {
    let mut is_known = KnownView::Nothing;
    let position = list_views.resume(reader, view.iter(), |known| {
        is_known = known;
        false
    });
    assert!(position.is_none());
    is_known
}

/// A watch on the shard's view, opened in any case.
fn open_watch_of_shard(list_views: &Arc<ListViews>, name: &str) -> Position {
    open_watch(list_views, &shard_edits(name))
}

fn open_watch(list_views: &Arc<ListViews>, view: &[RequestEdit]) -> Position {
    let (key, view) = (list_views.key(&READER), list_views.view_hash(view.iter()));
    list_views.lock_states().state_of(key, view, || 0).open();
    list_views.position(key, view, &READER)
}

fn shard_edits(name: &str) -> Vec<RequestEdit> {
    vec![RequestEdit::AndLabelSelector(format!("shard={name}").into())]
}

fn resume_watch(list_views: &Arc<ListViews>, name: &str) -> KnownView {
    resumed_as(list_views, &READER, &shard_edits(name))
}

fn record_list(list_views: &Arc<ListViews>, name: &str) {
    list_views.list(&READER, shard_edits(name).iter(), true);
}

#[test]
fn view_of_watch_or_page_is_recognized_as_same_or_other() {
    let list_views = Arc::new(ListViews::default());
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Nothing);
    record_list(&list_views, "a");
    for (view, known) in [
        (shard_edits("a"), KnownView::Same),
        (shard_edits("b"), KnownView::Other),
        (vec![], KnownView::Other),
    ] {
        assert_eq!(list_views.compare_page(&READER, view.iter()), known, "{view:?}");
        assert_eq!(resumed_as(&list_views, &READER, &view), known, "{view:?}");
    }
    let elsewhere = Reader {
        namespace: "n",
        ..READER
    };
    assert_eq!(
        list_views.compare_page(&elsewhere, shard_edits("a").iter()),
        KnownView::Nothing
    );
    list_views.list(&READER, [].iter(), true);
    assert_eq!(resumed_as(&list_views, &READER, &[]), KnownView::Same);
}

#[test]
fn repeated_note_counts_as_list() {
    let list_views = Arc::new(ListViews::default());
    let [a, b] = ["a", "b"].map(|name| list_views.list(&READER, shard_edits(name).iter(), true));
    assert_ne!(a, b);
    list_views.list_again(a.unwrap(), true);
    assert_eq!(list_views.list(&READER, shard_edits("a").iter(), true), a);
    list_views.list_again(b.unwrap(), true);
    for (name, known) in [("a", KnownView::Other), ("b", KnownView::Same)] {
        assert_eq!(
            list_views.compare_page(&READER, shard_edits(name).iter()),
            known,
            "{name}"
        );
    }
}

#[test]
fn repeated_note_of_dropped_reader_begins_its_state() {
    let list_views = Arc::new(ListViews::default());
    let noted = list_views.list(&READER, shard_edits("a").iter(), true).unwrap();
    *list_views.lock_states() = ReaderStates::default();
    list_views.list_again(noted, true);
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Same);
}

#[test]
fn list_is_not_noted_before_any_view_was_shaped() {
    let list_views = Arc::new(ListViews::default());
    assert_eq!(list_views.list(&READER, [].iter(), true), None);
    record_list(&list_views, "a");
    assert!(list_views.list(&READER, [].iter(), true).is_some());
}

#[test]
fn list_by_other_reader_does_not_hide_watch_from_another_view() {
    let list_views = Arc::new(ListViews::default());
    record_list(&list_views, "a");
    let [first, second] = [
        open_watch_of_shard(&list_views, "a"),
        open_watch_of_shard(&list_views, "a"),
    ];
    drop((first, second));
    record_list(&list_views, "b");
    for _ in 0..2 {
        assert_eq!(
            resume_watch(&list_views, "b"),
            KnownView::Other,
            "both informers must list again"
        );
    }
    assert_eq!(
        resume_watch(&list_views, "b"),
        KnownView::Same,
        "and both may watch then"
    );
}

#[test]
fn watch_from_before_first_rule_is_stale() {
    let list_views = Arc::new(ListViews::default());
    assert_eq!(resumed_as(&list_views, &READER, &[]), KnownView::Nothing);
    drop(open_watch(&list_views, &[]));
    record_list(&list_views, "a");
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Other);
}

#[test]
fn watch_that_ends_after_list_of_another_view_is_stale() {
    let list_views = Arc::new(ListViews::default());
    let watch = open_watch_of_shard(&list_views, "a");
    record_list(&list_views, "b");
    drop(watch);
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Other);
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Same);
}

#[test]
fn client_gets_410_once_per_change_of_view() {
    let list_views = Arc::new(ListViews::default());
    let mut watch = open_watch_of_shard(&list_views, "a");
    watch.mark_expired();
    drop(watch);
    record_list(&list_views, "b");
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Same);
    // Here the client gets the 410 as the response to its next watch.
    drop(open_watch_of_shard(&list_views, "b"));
    assert_eq!(resume_watch(&list_views, "c"), KnownView::Other);
    record_list(&list_views, "c");
    assert_eq!(resume_watch(&list_views, "c"), KnownView::Same);
}

#[test]
fn watches_one_after_another_leave_one_position() {
    let list_views = Arc::new(ListViews::default());
    for _ in 0..100 {
        record_list(&list_views, "a");
        assert_eq!(resume_watch(&list_views, "a"), KnownView::Same);
        drop(open_watch_of_shard(&list_views, "a"));
        drop(list_views.start_anew(&READER, shard_edits("a").iter()));
    }
    record_list(&list_views, "b");
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Other);
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Same);
}

#[test]
fn abandoned_positions_do_not_add_up() {
    let list_views = Arc::new(ListViews::default());
    for view in 0..100 {
        let view = view.to_string();
        record_list(&list_views, &view);
        drop(open_watch_of_shard(&list_views, &view));
    }
    record_list(&list_views, "a");
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Other);
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Same);
}

#[test]
fn lists_leave_no_note_while_no_plugin_shapes_them() {
    let list_views = Arc::new(ListViews::default());
    list_views.list(&READER, [].iter(), true);
    assert!(list_views.lock_states().by_reader.is_empty());
}

#[test]
fn oldest_notes_are_dropped_first() {
    let list_views = Arc::new(ListViews::default());
    let names: Vec<String> = (0..=MAX_READERS).map(|n| n.to_string()).collect();
    let reader = |namespace| Reader { namespace, ..READER };
    for name in &names {
        list_views.list(&reader(name), shard_edits("a").iter(), true);
    }
    assert_eq!(
        list_views.compare_page(&reader("0"), shard_edits("a").iter()),
        KnownView::Nothing
    );
    assert_eq!(
        list_views.compare_page(&reader("1"), shard_edits("a").iter()),
        KnownView::Same
    );
    assert_eq!(list_views.lock_states().order.len(), MAX_READERS);
}

#[test]
fn list_by_other_reader_does_not_hide_list_without_watch_yet() {
    let list_views = Arc::new(ListViews::default());
    record_list(&list_views, "a");
    record_list(&list_views, "b");
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Other);
    record_list(&list_views, "b");
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Same);
}

#[test]
fn lists_without_watch_do_not_add_up() {
    let list_views = Arc::new(ListViews::default());
    for _ in 0..100 {
        record_list(&list_views, "a");
    }
    record_list(&list_views, "b");
    assert_eq!(
        [resume_watch(&list_views, "b"), resume_watch(&list_views, "b")],
        [KnownView::Other, KnownView::Same]
    );
}

#[tokio::test(start_paused = true)]
async fn list_from_before_first_rule_is_stale_for_five_minutes() {
    let list_views = Arc::new(ListViews::default());
    let other = Reader {
        namespace: "n",
        ..READER
    };
    list_views.list(&READER, [].iter(), true);
    list_views.list(&READER, shard_edits("a").iter(), false);
    assert_eq!(
        [resume_watch(&list_views, "a"), resume_watch(&list_views, "a")],
        [KnownView::Other, KnownView::Same]
    );
    tokio::time::advance(FIRST_RULE_TIME).await;
    list_views.list(&other, shard_edits("a").iter(), false);
    assert_eq!(resumed_as(&list_views, &other, &shard_edits("a")), KnownView::Same);
}

#[test]
fn position_outlives_its_note() {
    let list_views = Arc::new(ListViews::default());
    let watch = open_watch_of_shard(&list_views, "a");
    *list_views.lock_states() = ReaderStates::default();
    drop(watch);
    record_list(&list_views, "b");
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Other);
}

#[test]
fn watch_counts_as_open_only_when_accepted() {
    let list_views = Arc::new(ListViews::default());
    record_list(&list_views, "a");
    let watch = list_views.resume(&READER, shard_edits("a").iter(), |known| known == KnownView::Same);
    let refused = list_views.resume(&READER, shard_edits("b").iter(), |known| known == KnownView::Same);
    assert!(refused.is_none());
    drop(watch.expect("it comes from the same view"));
    record_list(&list_views, "b");
    assert_eq!(
        [resume_watch(&list_views, "b"), resume_watch(&list_views, "b")],
        [KnownView::Other, KnownView::Same],
        "one watch was open"
    );
}

#[test]
fn objects_and_metadata_have_separate_readers() {
    let metadata = |text: &'static str| {
        let headers = HeaderMap::from_iter([(ACCEPT, http::HeaderValue::from_static(text))]);
        Reader {
            representation: Representation::from_headers(&headers),
            ..READER
        }
    };
    let list = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let watch = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let list_views = Arc::new(ListViews::default());
    list_views.list(&metadata(list), shard_edits("a").iter(), true);
    list_views.list(&READER, shard_edits("b").iter(), true);
    assert_eq!(
        resumed_as(&list_views, &metadata(watch), &shard_edits("a")),
        KnownView::Same
    );
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Same);
    let table = metadata("application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    assert_eq!(table.representation, Representation::Table);
}

#[test]
fn versions_from_earlier_process_are_stale_for_a_while() {
    let list_views = Arc::new(ListViews::default());
    list_views.note_predecessor();
    assert!(list_views.is_used(), "lists leave a state, whether shaped or not");
    list_views.list(&READER, [].iter(), false);
    assert_eq!(
        resumed_as(&list_views, &READER, &[]),
        KnownView::Other,
        "it may be another informer's, from before"
    );
    assert_eq!(resumed_as(&list_views, &READER, &[]), KnownView::Same);
}

#[test]
fn versions_from_earlier_process_match_under_the_same_chain() {
    let list_views = Arc::new(ListViews::default());
    list_views.note_predecessor();
    record_list(&list_views, "a");
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Same);
}

#[test]
fn client_that_must_list_again_counts_until_it_watches() {
    let list_views = Arc::new(ListViews::default());
    record_list(&list_views, "a");
    let watch = open_watch_of_shard(&list_views, "a");
    assert_eq!(list_views.stale_cache_count(), 0);
    watch.mark_outdated();
    drop(watch);
    assert_eq!(list_views.stale_cache_count(), 1, "its watch has ended");
    record_list(&list_views, "b");
    assert_eq!(list_views.stale_cache_count(), 1, "the list is not in its cache yet");
    assert_eq!(resume_watch(&list_views, "c"), KnownView::Other);
    assert_eq!(list_views.stale_cache_count(), 1, "sent again, it is still one");
    let watch = list_views.resume(&READER, shard_edits("b").iter(), |_| true);
    assert!(watch.is_some() && list_views.stale_cache_count() == 0);
    watch.unwrap().mark_outdated();
    drop(list_views.start_anew(&READER, shard_edits("c").iter()));
    assert_eq!(list_views.stale_cache_count(), 0, "a watch that begins with a list");
}

#[test]
fn clients_of_earlier_process_count_once_they_must_list_again() {
    let list_views = Arc::new(ListViews::default());
    list_views.note_predecessor();
    assert_eq!(
        [resume_watch(&list_views, "a"), resume_watch(&list_views, "a")],
        [KnownView::Nothing; 2]
    );
    assert_eq!(list_views.stale_cache_count(), 2);
    record_list(&list_views, "a");
    assert_eq!(resume_watch(&list_views, "a"), KnownView::Same);
}

#[tokio::test(start_paused = true)]
async fn client_that_never_returns_is_waited_for_for_two_minutes() {
    let list_views = Arc::new(ListViews::default());
    open_watch_of_shard(&list_views, "a").mark_outdated();
    tokio::time::advance(Duration::from_secs(119)).await;
    assert_eq!(list_views.stale_cache_count(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(list_views.stale_cache_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn client_that_repeats_expired_watch_is_waited_for_for_five_minutes() {
    let list_views = Arc::new(ListViews::default());
    open_watch_of_shard(&list_views, "a").mark_outdated();
    let repeat = async |seconds: u64, view: &str| {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_ne!(resume_watch(&list_views, view), KnownView::Same);
        }
    };
    repeat(299, "b").await;
    assert_eq!(list_views.stale_cache_count(), 1);
    let stale_caches = list_views.stale_caches();
    assert_eq!(
        (&*stale_caches[0].client, &*stale_caches[0].resource),
        ("manager", "configmaps")
    );
    assert_eq!(
        (stale_caches[0].refused_watches, stale_caches[0].given_up),
        (299, false)
    );
    repeat(1, "b").await;
    assert_eq!(list_views.stale_cache_count(), 0);
    repeat(600, "b").await;
    assert_eq!(list_views.stale_cache_count(), 0, "it does not begin anew");
    assert!(list_views.stale_caches()[0].given_up);
    repeat(1, "c").await;
    assert_eq!(list_views.stale_cache_count(), 1, "its view has changed once more");
    repeat(299, "c").await;
    assert_eq!(list_views.stale_cache_count(), 1);
    repeat(1, "c").await;
    assert_eq!(list_views.stale_cache_count(), 0);
    let watch = list_views.resume(&READER, shard_edits("c").iter(), |_| true);
    assert!(
        watch.is_some() && list_views.stale_caches().is_empty(),
        "it watches again"
    );
}

#[tokio::test(start_paused = true)]
async fn client_that_is_refused_late_has_time_to_list() {
    let list_views = Arc::new(ListViews::default());
    open_watch_of_shard(&list_views, "a").mark_outdated();
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(resume_watch(&list_views, "b"), KnownView::Other);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(list_views.stale_cache_count(), 1);
}
