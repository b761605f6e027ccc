//! What users write of volumes, and the kubelet sends on to the CSI driver.

use forebay_csi::fuzzing::{Asked, place, volume};

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod csi_volumes {
    use super::*;

    /// Most attributes, secrets and options together.
    const ITEMS: usize = 12;
    /// Names of attributes.
    const ATTRIBUTES: [&str; 4] =
        ["source", "options", "csi.storage.k8s.io/ephemeral", "storage.kubernetes.io/csiProvisionerIdentity"];
    /// Names of variables.
    const VARIABLES: [&str; 8] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_SAS_KEY",
        "LD_PRELOAD",
    ];

    fn text(input: &mut Input<'_>) -> String {
        String::from_utf8_lossy(input.piece()).into_owned()
    }

    /// One of the names that mean something, or any.
    fn name(input: &mut Input<'_>, known: &[&str]) -> String {
        let number = usize::from(input.u8());
        known.get(number % 16).map_or_else(|| text(input), |name| (*name).to_owned())
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        if flags & 8 != 0 {
            let id = text(&mut input);
            return place(&String::from_utf8_lossy(input.rest()), &id);
        }
        let mut asked = Asked { mode: i32::from(input.u8() % 9), read_only: flags & 1 != 0, ..Asked::default() };
        if flags & 2 != 0 {
            asked.group = text(&mut input);
        }
        if flags & 4 != 0 {
            asked.fs_type = text(&mut input);
        }
        for _ in 0..ITEMS {
            if input.is_empty() {
                break;
            }
            match input.u8() % 3 {
                0 => drop(asked.attributes.insert(name(&mut input, &ATTRIBUTES), text(&mut input))),
                1 => drop(asked.secrets.insert(name(&mut input, &VARIABLES), text(&mut input))),
                _ => asked.flags.push(text(&mut input)),
            }
        }
        volume(&asked);
    }

    /// Of a volume that somebody may read.
    fn begins(flags: u8) -> Output {
        Output::default().u8(flags).u8(3)
    }

    /// An attribute by its number.
    fn attribute(output: Output, number: u8, value: &str) -> Output {
        output.u8(0).u8(number).piece(value)
    }

    /// A variable by its number.
    fn variable(output: Output, number: u8, value: &str) -> Output {
        output.u8(1).u8(number).piece(value)
    }

    fn of_amazon(output: Output) -> Output {
        variable(variable(output, 0, "AKIA"), 1, "hunter2/hunter2+hunter2")
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let pod = || of_amazon(attribute(begins(1), 0, "s3://team-a/models"));
        let with = |options: &str| attribute(pod(), 1, options).done();
        let label = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
        let workers = attribute(attribute(begins(0), 0, "forebay"), 1, "fuse.read_ahead=8MiB,metadata.ttl=5m");
        let key = r#"{"type": "service_account", "private_key": "hunter2", "client_email": "a@example.org"}"#;
        let elsewhere = r#"{"private_key": "hunter2", "gcs_base_url": "http://169.254.169.254"}"#;
        let google = |key: &str| variable(attribute(begins(1), 0, "gs://bucket"), 4, key).done();
        let azure = |account: &str| {
            let named = variable(attribute(begins(1), 0, "az://container"), 5, account);
            variable(named, 6, "sv=hunter2&sig=x").done()
        };
        let group = Output::default().u8(2).u8(5).piece("2000");
        let place = |id: &str, path: &str| Output::default().u8(8).piece(id).bytes(path).done();
        vec![
            ("workers", workers.u8(2).piece("memory=8GiB,ro").u8(2).piece(label).done()),
            ("group", attribute(group, 0, "s3://bucket").done()),
            ("pod", with("ro,metadata.ttl=\"5m\",origin.s3.region=eu-west-1")),
            ("pod_with_a_label", pod().u8(2).piece(label).done()),
            ("region_of_a_server", with("origin.s3.region=example.org/")),
            ("quotes", with("metadata.ttl=\"5m,log.file=/x\",\"ro")),
            ("no_name", with("=log.file=/etc/passwd")),
            ("empty_key", variable(variable(attribute(begins(1), 0, "s3://team-a"), 0, ""), 1, "hunter2").done()),
            ("google", google(key)),
            ("google_elsewhere", google(elsewhere)),
            ("azure", azure("models")),
            ("azure_elsewhere", azure("example.org/")),
            ("preload", variable(pod(), 7, "hunter2").done()),
            ("other_source", of_amazon(attribute(begins(1), 0, "s3://team-a/../team-b")).done()),
            ("place", place("volume", "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pv/mount")),
            ("place_elsewhere", place("../../a b", "/var/lib/kubelet/../../../etc")),
        ]
    }
}
