//! What an object store answers, and what a client says of the page that it wants.

use forebay_origin::fuzzing::{answer, head, listing, token, uploads};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod s3_answers {
    use super::*;

    /// Most pages of a listing.
    const PAGES: usize = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let (kind, max) = (input.u8(), usize::from(input.u8()) + 1);
        match kind % 5 {
            0 => {
                let prefix = String::from_utf8_lossy(input.piece()).into_owned();
                let mut pages = Vec::new();
                while !input.is_empty() && pages.len() < PAGES {
                    pages.push(input.piece());
                }
                listing(&pages, &prefix, max);
            }
            1 => answer(max as u16, input.rest()),
            3 => head(input.rest()),
            4 => uploads(input.rest(), u32::from(kind / 5), max),
            _ => token(&String::from_utf8_lossy(input.rest()), max),
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let object = |key: &str| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2024-05-06T07:08:09.123Z</LastModified>\
                 <ETag>&quot;abc&quot;</ETag><Size>5</Size></Contents>"
            )
        };
        let prefix = |key: &str| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>");
        let page = |inside: &[String]| {
            let inside = inside.concat();
            format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Name>b</Name>{inside}</ListBucketResult>")
        };
        let pages = [page(&[object("d/a"), object("d/a-b")]), page(&[prefix("d/a/"), object("d/b &amp; c")])];
        let listing = pages.iter().fold(Output::default().u8(0).u8(9).piece("d/"), |output, page| output.piece(page));
        let error = "<Error><Code>NoSuchBucket</Code><Message>no</Message><Region>eu-west-1</Region></Error>";
        let copied = "\n<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>";
        let partial = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        let parts = "<ListPartsResult><IsTruncated>true</IsTruncated><Part><PartNumber>2</PartNumber><ETag>\"e\"</ETag>\
                     <Size>5</Size></Part></ListPartsResult>";
        let uploads = "<ListMultipartUploadsResult><Upload><Key>a</Key><UploadId>1</UploadId></Upload>\
                       </ListMultipartUploadsResult>";
        let position = r#"{"after":"t","held":[{"key":"a","size":1,"etag":"\"e\"","modified_nanos":0}]}"#;
        vec![
            ("two_pages", listing.done()),
            ("error", Output::default().u8(1).u8(200).bytes(error).done()),
            ("copied", Output::default().u8(1).u8(199).bytes(copied).done()),
            ("token", Output::default().u8(2).u8(3).bytes(position).done()),
            ("head", Output::default().u8(3).u8(0).bytes(partial).done()),
            ("parts", Output::default().u8(4).u8(9).bytes(parts).done()),
            ("uploads", Output::default().u8(4).u8(9).bytes(uploads).done()),
        ]
    }
}
