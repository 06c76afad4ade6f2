//! A queue of objects, each once, in the order in which they came.

use std::collections::{HashMap, VecDeque};

use super::write::Work;

/// Keyed by UID. An object that is put again keeps its place, with its latest state.
#[derive(Debug)]
pub(super) struct Queue {
    most: usize,
    order: VecDeque<String>,
    works: HashMap<String, Work>,
}

impl Queue {
    /// An empty queue for `most` objects.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            order: VecDeque::new(),
            works: HashMap::new(),
        }
    }

    /// `false`: there is no room.
    pub(super) fn put(&mut self, uid: &str, work: Work) -> bool {
        if let Some(waiting) = self.works.get_mut(uid) {
            *waiting = work;
            return true;
        }
        if self.works.len() >= self.most {
            return false;
        }
        self.order.push_back(uid.to_owned());
        self.works.insert(uid.to_owned(), work);
        true
    }

    /// The object that has waited longest.
    pub(super) fn pop(&mut self) -> Option<(String, Work)> {
        self.pop_if(|_| true)
    }

    /// The object that has waited longest of those that `is_free` allows. The others keep their places.
    pub(super) fn pop_if(&mut self, is_free: impl Fn(&str) -> bool) -> Option<(String, Work)> {
        let at = self.order.iter().position(|uid| is_free(uid))?;
        let uid = self.order.remove(at)?;
        let work = self.works.remove(&uid)?;
        Some((uid, work))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work_of(name: &str) -> Work {
        Work::Object {
            namespace: "a".to_owned(),
            name: name.to_owned(),
            is_ours: false,
        }
    }

    #[test]
    fn each_object_waits_once_with_what_was_seen_last() {
        let mut queue = Queue::new(2);
        assert!(queue.put("1", work_of("one")) && queue.put("2", work_of("two")));
        assert!(queue.put("1", work_of("newer")), "it is there already");
        assert!(!queue.put("3", work_of("three")));
        let (uid, first) = queue.pop().unwrap();
        assert_eq!(uid, "1");
        assert!(matches!(first, Work::Object { name, .. } if name == "newer"));
        assert!(queue.put("3", work_of("three")));
        assert_eq!([queue.pop().unwrap().0, queue.pop().unwrap().0], ["2", "3"]);
        assert!(queue.pop().is_none() && queue.is_empty());
    }

    #[test]
    fn skipped_entry_keeps_its_place() {
        let mut queue = Queue::new(3);
        for uid in ["1", "2", "3"] {
            assert!(queue.put(uid, work_of(uid)));
        }
        assert_eq!(queue.pop_if(|uid| uid != "1").unwrap().0, "2");
        assert!(queue.pop_if(|uid| uid == "2").is_none());
        assert_eq!([queue.pop().unwrap().0, queue.pop().unwrap().0], ["1", "3"]);
    }
}
