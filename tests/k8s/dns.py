#!/usr/bin/env python3
"""Names of Services for the Kubernetes of scripts/k8s-test.sh, which has no kube-proxy: a Service's name is the addresses of its
pods, as that of a headless one, whatever its type.

    dns.py ADDRESS API_SERVER CA_FILE TOKEN

Answers `[HOSTNAME.]NAME.NAMESPACE.svc.cluster.local` over UDP, and says of every other name that there is none.
"""

import json
import socket
import ssl
import struct
import sys
import urllib.request

SUFFIX = ["svc", "cluster", "local"]
A, ANY_CLASS = 1, 1
FOUND, NO_SUCH_NAME = 0, 3


def question(packet):
    """The labels that are asked for, of which type, and where the question ends."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode("ascii", "replace").lower())
        at += 1 + packet[at]
    return labels, struct.unpack("!H", packet[at + 1 : at + 3])[0], at + 5


def addresses(ask, labels):
    """Those of the pods behind a Service; `None` if it is not the name of one."""
    if labels[-3:] != SUFFIX or len(labels) not in (5, 6):
        return None
    *host, name, namespace = labels[:-3]
    slices = ask(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}")
    endpoints = [endpoint for one in slices["items"] for endpoint in one.get("endpoints") or []]
    if host:
        endpoints = [endpoint for endpoint in endpoints if endpoint.get("hostname") == host[0]]
    ready = [endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready", True)]
    return [address for endpoint in ready for address in endpoint["addresses"]] or None


def answer(packet, found, kind, end):
    code = NO_SUCH_NAME if found is None else FOUND
    records = [socket.inet_aton(address) for address in found or [] if kind == A]
    head = packet[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
    # A pointer to the name in the question; valid for a second.
    body = b"".join(struct.pack("!HHHIH", 0xC00C, A, ANY_CLASS, 1, 4) + record for record in records)
    return head + packet[12:end] + body


def main():
    address, server, authority, token = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)

    def ask(path):
        request = urllib.request.Request(server + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, context=context, timeout=2) as response:
            return json.load(response)

    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))
    while True:
        packet, asker = listener.recvfrom(512)
        try:
            labels, kind, end = question(packet)
            listener.sendto(answer(packet, addresses(ask, labels), kind, end), asker)
        except (OSError, ValueError, IndexError, KeyError, struct.error) as error:
            print(f"{asker}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
