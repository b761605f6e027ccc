//! Metrics of what goes over RDMA: of a worker's listeners, and of a mount's paths to workers.

use forebay_metrics::Families;

use crate::report::Rdma;

/// Workers with series of their own in a mount's metrics.
pub(super) const MAX_WORKERS: usize = 256;

pub(super) fn of_cards(rdma: &Rdma, families: &mut Families) {
    for listener in &rdma.listeners {
        let card = [("card", &*listener.card)];
        families
            .counter("forebay_rdma_sent_bytes_total", "Bytes of replies sent over RDMA")
            .add(card, listener.bytes_sent);
        families
            .counter("forebay_rdma_request_bytes_total", "Bytes of requests that arrived over RDMA")
            .add(card, listener.bytes_received);
        families.counter("forebay_rdma_requests_total", "Requests that arrived over RDMA").add(card, listener.requests);
        families.counter("forebay_rdma_replies_total", "Replies sent over RDMA").add(card, listener.replies);
        families
            .histogram(
                "forebay_rdma_reply_duration_seconds",
                "Time from a request's arrival over RDMA until the card gets the reply",
            )
            .record(card, &listener.latency);
        families.gauge("forebay_rdma_connections", "Open RDMA connections").add(card, listener.connections);
        families
            .counter("forebay_rdma_refused_connections_total", "RDMA connections that were not accepted")
            .add(card, listener.refused_connections);
        families
            .counter(
                "forebay_rdma_no_room_connections_total",
                "RDMA connections that a worker refused, or closed before their hello, as it had no place for them",
            )
            .add(card, listener.no_room_connections);
    }
    let cards = rdma.cards.iter().map(|card| (&card.card, card.registered_bytes));
    let listening = rdma.listeners.iter().map(|listener| (&listener.card, listener.registered_bytes));
    for (card, bytes) in cards.chain(listening) {
        families.gauge("forebay_rdma_registered_bytes", "Memory registered with a card").add([("card", card)], bytes);
    }
    for card in &rdma.cards {
        let of = [("card", &*card.card)];
        families
            .counter("forebay_rdma_received_bytes_total", "Bytes received from workers over a card")
            .add(of, card.bytes_received);
        families
            .counter(
                "forebay_rdma_one_sided_reads_total",
                "Reads of workers' memory by a client's card, without the worker",
            )
            .add(of, card.one_sided_reads);
        families
            .counter(
                "forebay_rdma_one_sided_refused_total",
                "Such reads that found something else, and asked the worker",
            )
            .add(of, card.one_sided_refused);
        families
            .counter(
                "forebay_rdma_message_bytes_total",
                "Payload that came in messages and was copied, as a client's card has no memory windows",
            )
            .add(of, card.bytes_in_messages);
    }
    if let Some(paths) = &rdma.paths {
        for (transport, traffic) in [("rdma", &paths.rdma), ("tcp", &paths.tcp)] {
            families
                .counter("forebay_client_path_received_bytes_total", "Bytes received from workers, by transport")
                .add([("transport", transport)], traffic.bytes_received);
            families
                .histogram("forebay_client_path_call_duration_seconds", "Time from call to answer, by transport")
                .record([("transport", transport)], &traffic.latency);
        }
        families
            .counter(
                "forebay_client_path_switches_total",
                "Switches of a worker's path from one transport to the other",
            )
            .add([("to", "tcp")], paths.fell_back)
            .add([("to", "rdma")], paths.failed_back);
        let striping = &paths.striping;
        families
            .counter("forebay_client_striped_reads_total", "Reads that were divided among several cards")
            .add([], striping.reads);
        families
            .counter("forebay_client_striped_parts_total", "Parts that reads were divided into")
            .add([], striping.parts);
        families
            .counter(
                "forebay_client_parts_again_total",
                "Parts of reads that another path was asked for, too, by reason",
            )
            .add([("why", "late")], striping.late)
            .add([("why", "failed")], striping.failed);
    }
    for worker in rdma.workers.iter().take(MAX_WORKERS) {
        for (transport, is_rdma) in [("rdma", true), ("tcp", false)] {
            let up = worker.data.iter().filter(|path| path.rdma == is_rdma && path.up).count();
            families
                .gauge("forebay_client_paths_up", "Data paths to a worker that are in use, by transport")
                .add([("worker", &worker.worker), ("transport", transport)], up);
        }
    }
}
