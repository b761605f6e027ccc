//! Metrics of an S3 endpoint.

use forebay_metrics::Families;

use crate::report::S3;

pub(super) fn of_endpoint(endpoint: &S3, families: &mut Families) {
    let mut latency = families.histogram(
        "forebay_s3_request_duration_seconds",
        "Time from an S3 request to the head of its answer, by operation",
    );
    for (operation, took) in &endpoint.operations {
        latency = latency.record([("operation", operation)], took);
    }
    let mut answers =
        families.counter("forebay_s3_answers_total", "Answers to S3 requests, by the class of their status");
    for (class, count) in &endpoint.answers {
        answers = answers.add([("status", class)], *count);
    }
    families.counter("forebay_s3_sent_bytes_total", "Bytes of objects sent to S3 clients").add([], endpoint.sent_bytes);
    families
        .counter("forebay_s3_received_bytes_total", "Bytes of objects received from S3 clients")
        .add([], endpoint.received_bytes);
    families
        .counter("forebay_s3_unsigned_total", "S3 requests that no known key has signed")
        .add([], endpoint.unsigned);
    families.gauge("forebay_s3_requests", "S3 requests whose answer has not begun").add([], endpoint.under_way);
    families
        .gauge("forebay_s3_memory_bytes", "Memory that bodies of S3 requests and answers hold")
        .add([], endpoint.memory_bytes);
}
