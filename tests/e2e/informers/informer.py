"""Watches the ConfigMaps of a namespace with the Python client and prints what it is told, one JSON object a line.

informer.py watch|informer KUBECONFIG NAMESPACE
"""

import json
import sys
import threading

from kubernetes import client, config, watch
from kubernetes.informer import ADDED, DELETED, ERROR, MODIFIED, SharedInformer


def tell(**what):
    # In one piece: several threads tell something.
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def told(kind, item):
    tell(type=kind, name=item.metadata.name, version=item.metadata.resource_version)


def watch_again_and_again(core, namespace):
    """One watch a second, each from where the last one ended."""
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    tell(type="LISTED", version=version)
    while True:
        stream = watch.Watch()
        options = {"resource_version": version, "timeout_seconds": 1, "allow_watch_bookmarks": True}
        for event in stream.stream(core.list_namespaced_config_map, namespace, **options):
            if event["type"] != "BOOKMARK":
                told(event["type"], event["object"])
        version = stream.resource_version
        tell(type="RESUMED", version=version)


def inform(core, namespace):
    """The client's own informer, until standard input ends."""
    informer = SharedInformer(core.list_namespaced_config_map, namespace=namespace)
    for kind in (ADDED, MODIFIED, DELETED):
        informer.add_event_handler(kind, lambda item, kind=kind: told(kind, item))
    informer.add_event_handler(ERROR, lambda why: tell(type=ERROR, code=getattr(why, "status", None)))
    informer.start()
    threading.Thread(target=lambda: [tell(type="STATE", names=names(informer)) for _ in sys.stdin], daemon=True).start()
    threading.Event().wait()


def names(informer):
    return sorted(item.metadata.name for item in informer.cache.list())


mode, kubeconfig, namespace = sys.argv[1:]
config.load_kube_config(kubeconfig)
{"watch": watch_again_and_again, "informer": inform}[mode](client.CoreV1Api(), namespace)
