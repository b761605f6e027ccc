//! What a request is about, as far as it says so itself: for whoever keeps a record of requests. Pure.

use forebay_types::Subject;

use crate::message::{Change, FreeRequest, ListRequest, UploadRequest};
use crate::op::Op;
use crate::request::Request;

/// What `request` is about.
#[must_use]
pub fn subject_of(request: &Request) -> Subject {
    let body = &request.body;
    match request.op {
        Op::Stat | Op::StatRead | Op::Refresh => Subject::of_path(body),
        Op::List => ListRequest::decode(body).map(|list| Subject::of_path(&list.path)).unwrap_or_default(),
        Op::Upload => UploadRequest::path_of(request).map(|path| Subject::of_path(&path)).unwrap_or_default(),
        Op::Change => Change::decode(body).map(|change| of_change(&change)).unwrap_or_default(),
        Op::Free => FreeRequest::decode(body).map(|free| of_free(&free)).unwrap_or_default(),
        Op::Read | Op::Fill | Op::Coverage | Op::Adopt | Op::Part => {
            Subject::of_files([request.block.file].into_iter())
        }
        Op::Ping | Op::Stats | Op::Paths | Op::Admit => Subject::default(),
    }
}

fn of_change(change: &Change) -> Subject {
    let (name, path, from) = match change {
        Change::MakeDirectory { path } => ("make-directory", path, None),
        Change::RemoveDirectory { path } => ("remove-directory", path, None),
        Change::Remove { path } => ("remove", path, None),
        Change::Copy { from, to } => ("copy", to, Some(from)),
        Change::Begin { path } => ("begin", path, None),
        Change::Complete { path, .. } => ("complete", path, None),
        Change::Abort { path, .. } => ("abort", path, None),
        Change::Parts { path, .. } => ("parts", path, None),
        Change::Uploads { path, .. } => ("uploads", path, None),
    };
    let from = from.and_then(|from| Subject::of_path(from).path);
    Subject { change: Some(name), from, ..Subject::of_path(path) }
}

fn of_free(free: &FreeRequest) -> Subject {
    let path = free.below.as_deref().and_then(|below| Subject::of_path(below).path);
    Subject { path, ..Subject::of_files(free.files.iter().map(|(file, _)| *file)) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use forebay_types::{BlockKey, FileId, MAX_SUBJECT_FILES, MAX_SUBJECT_PATH};

    use super::*;
    use crate::wire::RequestHeader;

    fn of(op: Op, body: Bytes) -> Subject {
        subject_of(&Request::on_path(op, body, Duration::ZERO))
    }

    #[test]
    fn a_request_says_which_path_it_is_about() {
        let path = || b"/a/\xff".to_vec();
        let named = Subject { path: Some(path()), ..Subject::default() };
        for op in [Op::Stat, Op::StatRead, Op::Refresh] {
            assert_eq!(of(op, path().into()), named);
        }
        let list = ListRequest { path: path(), token: None, max: 10 };
        assert_eq!(of(Op::List, list.encode()), named);
        let removed = Change::Remove { path: path() };
        assert_eq!(of(Op::Change, removed.encode()), Subject { change: Some("remove"), ..named.clone() });
        let copied = Subject { change: Some("copy"), from: Some(b"/b".to_vec()), ..named.clone() };
        assert_eq!(of(Op::Change, Change::Copy { from: b"/b".to_vec(), to: path() }.encode()), copied);
        let files = vec![FileId([7; 16]), FileId([8; 16])];
        let free = FreeRequest { files: files.iter().map(|file| (*file, 1)).collect(), below: Some(path()) };
        assert_eq!(of(Op::Free, free.encode()), Subject { files, file_count: 2, ..named.clone() });

        let upload = UploadRequest { path: path(), part: None, only_new: false, bytes: Bytes::from_static(b"bytes") };
        let request = upload.request(Duration::ZERO);
        // As a server gets it; and its checksum is not looked at.
        let body = [&request.body[..], b"other"].concat();
        assert_eq!(subject_of(&RequestHeader::of(1, &request).with_body(body.into())), named);
    }

    #[test]
    fn what_names_no_path_is_about_a_file_and_what_makes_no_sense_about_nothing() {
        let block = BlockKey { file: FileId([7; 16]), index: 3 };
        let read = Request::on_block(Op::Read, block, 0, 1, Duration::ZERO);
        assert_eq!(subject_of(&read), Subject { files: vec![block.file], file_count: 1, ..Subject::default() });
        for op in [Op::List, Op::Upload, Op::Change] {
            assert_eq!(of(op, Bytes::from_static(b"\xff\xff\xff\xff")), Subject::default(), "{op:?}");
        }
        // Nobody hides what is freed behind what comes first: it is named as far as there is room, and counted.
        let many = (0..2000_u16).map(|number| (FileId([number.to_le_bytes()[0]; 16]), 1)).collect();
        let freed = of(Op::Free, FreeRequest { files: many, below: None }.encode());
        assert_eq!((freed.files.len(), freed.file_count, freed.path), (MAX_SUBJECT_FILES, 2000, None));
        let long = of(Op::Stat, vec![b'a'; 2 * MAX_SUBJECT_PATH].into());
        assert_eq!(long.path.map(|path| path.len()), Some(MAX_SUBJECT_PATH));
    }
}
