use super::*;
use forebay_config::Sources;
use forebay_doctor::facts::Standing;

fn config(settings: &[&str]) -> Config {
    Config::load(&Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()))).unwrap().config
}

fn machine() -> Machine {
    let nic = |name: &str, address: Option<&str>, is_up| Nic {
        name: name.to_owned(),
        address: address.map(|address| address.parse().unwrap()),
        is_up,
    };
    Machine(vec![
        nic("eth0", Some("10.0.0.1"), true),
        nic("ib0", Some("10.1.0.1"), true),
        nic("ib1", Some("10.1.0.2"), false),
        nic("ib2", None, false),
        nic("v6", Some("fd00::1"), true),
    ])
}

fn listeners(settings: &[&str]) -> Vec<String> {
    WorkerAddresses::of(&config(settings)).unwrap().listeners().map(|address| address.to_string()).collect()
}

#[test]
fn a_name_stands_for_an_address_of_either_family() {
    let machine = machine();
    let of = |name: &str| machine.address_of("worker.rpc.bind.device", name).unwrap().to_string();
    assert_eq!((of("ib0").as_str(), of("v6").as_str()), ("10.1.0.1", "fd00::1"));
}

#[test]
fn what_cannot_be_bound_to_is_told_with_its_key_a_remedy_and_the_names_that_are_right() {
    let machine = machine();
    for (name, what, next) in [
        ("IB0", "there is no network interface `IB0`", "case-sensitive"),
        ("ib1", "`ib1` (10.1.0.2) is down", "ip link set ib1 up"),
        ("ib2", "`ib2` has no address", "ip addr add ADDRESS/PREFIX dev ib2"),
    ] {
        let fault = machine.address_of("worker.data.bind.device", name).unwrap_err();
        let user_error = crate::error::UserError::from(&anyhow::Error::from(fault));
        assert_eq!(user_error.exit, Exit::Usage);
        assert!(
            user_error.what.starts_with("worker.data.bind.device: ") && user_error.what.contains(what),
            "{user_error:?}"
        );
        let remedy = user_error.next.unwrap();
        assert!(remedy.contains(next) && remedy.contains("eth0 (10.0.0.1), ib0 (10.1.0.1), v6 (fd00::1)"), "{remedy}");
        assert!(!remedy.contains("ib1 ("), "{remedy}");
    }
}

#[test]
fn an_address_that_is_not_of_this_machine_is_told_with_those_that_are() {
    let told = |ip: &str, peer: Option<&str>| {
        let fault = check_own_address("--local-ip", ip.parse().unwrap(), peer.map(|peer| peer.parse().unwrap()));
        fault.err().map(|fault| crate::error::UserError::from(&anyhow::Error::from(fault)))
    };
    // An address of documentation (RFC 5737), which no machine has.
    let wrong = told("192.0.2.77", Some("127.0.0.1")).unwrap();
    assert_eq!((wrong.exit, wrong.what.as_str()), (Exit::Usage, "--local-ip 192.0.2.77 is no address of this machine"));
    assert!(wrong.next.unwrap().contains("127.0.0.1 (lo)"));
    assert!(told("127.0.0.1", Some("::1")).unwrap().what.contains("different families"));
    assert!(told("127.0.0.1", Some("192.0.2.77")).unwrap().what.contains("does not leave this machine"));
    for right in ["127.0.0.1", "127.0.0.9", "0.0.0.0"] {
        assert!(told(right, None).is_none(), "{right}");
    }
    assert!(told("127.0.0.1", Some("127.0.0.2")).is_none());
}

#[test]
fn only_the_keys_of_its_parts_can_stop_a_process() {
    let all = config(&[
        "worker.rpc.bind.device=a",
        "worker.data.bind.device=b",
        "worker.web.bind.device=c",
        "worker.rest.bind.device=d",
        "client.network.data.bind.device=e",
        "network.group_network=f",
    ]);
    let keys = |parts: &[Part]| named(&all, parts).map(|(_, interface)| interface.as_str()).collect::<String>();
    assert_eq!(keys(&[Part::Worker]), "abcdf");
    assert_eq!(keys(&[Part::Client]), "ef");
    assert_eq!(keys(&[Part::Worker, Part::Client]), "abcdef");
    assert_eq!(keys(&[]), "f");
    assert!(check(&config(&[]), &[Part::Worker, Part::Client]).is_ok());
    for key in [RPC, DATA, WEB, REST] {
        let wrong = config(&[&format!("{key}=nonesuch")]);
        let error = check(&wrong, &[Part::Worker]).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("nonesuch"), "{error}");
        assert!(check(&wrong, &[Part::Client]).is_ok());
    }
}

#[test]
fn a_worker_listens_where_the_most_special_key_says() {
    assert_eq!(listeners(&[]), ["0.0.0.0:29999"]);
    assert_eq!(listeners(&["worker.rpc.bind.device=lo"]), ["127.0.0.1:29999"]);
    assert_eq!(listeners(&["network.group_network=lo"]), ["127.0.0.1:29999"]);
    assert_eq!(listeners(&["network.group_network=lo", "worker.rpc.bind.host=127.0.0.9"]), ["127.0.0.9:29999"]);
    assert_eq!(listeners(&["worker.rpc.bind.device=lo", "worker.rpc.bind.host=127.0.0.9"]), ["127.0.0.1:29999"]);
    let own_data = ["worker.data.bind.device=lo", "worker.rpc.bind.host=127.0.0.9", "worker.rpc.port=7"];
    assert_eq!(listeners(&own_data), ["127.0.0.9:7", "127.0.0.1:7"]);
    assert_eq!(listeners(&["worker.data.bind.device=lo", "worker.rpc.bind.device=lo"]), ["127.0.0.1:29999"]);
}

#[test]
fn a_listener_at_every_address_takes_data_and_its_address_is_known_all_the_same() {
    let everywhere = WorkerAddresses::of(&config(&["worker.data.bind.device=lo"])).unwrap();
    assert_eq!(everywhere.listeners().count(), 1);
    assert_eq!(everywhere.data, Some("127.0.0.1:29999".parse().unwrap()));
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    assert!(covers(address("0.0.0.0"), address("10.0.0.1")) && covers(address("::"), address("10.0.0.1")));
    assert!(covers(address("::"), address("fd00::1")) && !covers(address("0.0.0.0"), address("fd00::1")));
    assert!(!covers(address("10.0.0.1"), address("10.0.0.2")));
    let apart = WorkerAddresses { rpc: "0.0.0.0:7".parse().unwrap(), data: Some("[fd00::1]:7".parse().unwrap()) };
    assert_eq!(apart.listeners().count(), 2);
}

#[test]
fn metrics_are_shown_where_requests_are_taken_unless_they_have_interfaces_of_their_own() {
    let rpc: IpAddr = "127.0.0.9".parse().unwrap();
    let shown = |settings: &[&str]| {
        let addresses = worker_web_addresses(&config(settings), rpc).unwrap();
        addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    assert_eq!(shown(&[]), ["127.0.0.9"]);
    assert_eq!(shown(&["worker.web.bind.device=lo"]), ["127.0.0.1"]);
    assert_eq!(shown(&["worker.rest.bind.device=lo"]), ["127.0.0.9", "127.0.0.1"]);
    assert_eq!(shown(&["worker.web.bind.device=lo", "worker.rest.bind.device=lo"]), ["127.0.0.1"]);
}

#[test]
fn connections_leave_by_what_their_own_key_names_and_else_by_the_groups_network() {
    let lo = Some(IpAddr::from([127, 0, 0, 1]));
    type Source = fn(&Config) -> anyhow::Result<Option<IpAddr>>;
    let sources: [Source; 3] = [worker_source, client_source, group_source];
    let of = |setting: &str| sources.map(|source| source(&config(&[setting])).unwrap());
    assert_eq!(of("block.size=4MiB"), [None, None, None]);
    assert_eq!(of("network.group_network=lo"), [lo, lo, lo]);
    assert_eq!(of("client.network.data.bind.device=lo"), [lo, lo, None]);
    assert_eq!(of("worker.data.bind.device=lo"), [lo, None, None]);
    assert_eq!(of("worker.rpc.bind.device=lo"), [lo, None, None]);
    // One that is named for this comes before one for all.
    let two = config(&["client.network.data.bind.device=lo", "network.group_network=nonesuch"]);
    assert_eq!(client_source(&two).unwrap(), lo);
}

#[test]
fn who_moves_no_data_needs_no_interface_for_it() {
    let of = |settings: &[&str], reach| source_for(&config(settings), reach).map_err(|error| error.to_string());
    let shared = ["client.network.data.bind.device=nonesuch"];
    assert_eq!(of(&shared, Reach::Requests), Ok(None));
    assert!(of(&shared, Reach::Data).unwrap_err().contains("nonesuch"));
    assert!(check(&config(&shared), &[]).is_ok());
    let both = ["client.network.data.bind.device=nonesuch", "network.group_network=lo"];
    assert_eq!(of(&both, Reach::Requests), Ok(Some(IpAddr::from([127, 0, 0, 1]))));
}

#[test]
fn a_name_stands_for_the_interfaces_own_address_and_not_for_the_smallest() {
    let address =
        |name: &str, ip: &str, standing| (name.to_owned(), Address { ip: ip.parse().unwrap(), prefix: 24, standing });
    let addresses = [
        address("eth0", "10.0.0.1", Standing::Own),
        address("ib0", "10.1.0.7", Standing::Own),
        address("ib0", "10.1.0.2", Standing::Secondary),
        address("ib0:vip", "10.1.0.3", Standing::Secondary),
    ];
    let first = |name| first_address(&addresses, name).map(|ip| ip.to_string());
    assert_eq!((first("ib0").as_deref(), first("ib0:vip").as_deref()), (Some("10.1.0.7"), Some("10.1.0.3")));
    assert_eq!(first("ib1"), None);
}

#[test]
fn the_groups_network_takes_the_place_of_every_address_only() {
    let of = |settings: &[&str]| {
        let config = config(settings);
        [mount_web_address(&config), coordinator_address(&config)].map(|address| address.unwrap().to_string())
    };
    assert_eq!(of(&[]), ["127.0.0.1:49999", "0.0.0.0:19999"], "a mount's pages are for its own machine");
    let everywhere = "client.web.bind.host=0.0.0.0";
    assert_eq!(of(&[everywhere])[0], "0.0.0.0:49999");
    assert_eq!(of(&["network.group_network=lo", everywhere]), ["127.0.0.1:49999", "127.0.0.1:19999"]);
    let hosts = ["network.group_network=lo", "client.web.bind.host=127.0.0.8", "coordinator.bind.host=127.0.0.9"];
    assert_eq!(of(&hosts), ["127.0.0.8:49999", "127.0.0.9:19999"]);
}

#[test]
fn loopback_is_nothing_that_others_would_call_this_machine_by() {
    let host = |text: &str| config(&[&format!("coordinator.hostname={text}")]).coordinator_hostname.unwrap();
    assert!(!is_of_this_machine(&host("127.0.0.1")) && !is_of_this_machine(&host("198.51.100.1")));
    assert_eq!((host_and_port("a", 1), host_and_port("fd00::1", 1)), ("a:1".to_owned(), "[fd00::1]:1".to_owned()));
}
