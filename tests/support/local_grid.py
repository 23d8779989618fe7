"""Flower's grid without a network: every message goes through Flower's own serialisation, in one process."""

from __future__ import annotations

from threading import Event, Lock

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedlightning.flower.client_app import make_client_app

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a message asks who makes it


def app_of(handle):
    """An app whose messages a function from bytes to bytes answers, however long the server waits."""
    return make_client_app(lambda data, seconds: handle(data))


def through_flower(content):
    """A record as it arrives at the other end."""
    sent = recorddict_to_proto(content)
    return recorddict_from_proto(type(sent).FromString(sent.SerializeToString()))


class LocalGrid(Grid):
    """Nodes in this process, each a ClientApp; a node works when its answer is pulled.

    Attributes:
        apps: What runs at each node, by id.
        dead: Nodes that are not online.
        late: Nodes that are online and take their time.
        stalled: Nodes whose answers are announced and do not get whole until ``goes_on`` is set.
        errors: Codes with which nodes fail, in place of an answer.
        sent: All messages pushed.
        bytes: What answers consist of, as they travel.
    """

    def __init__(self, apps):
        self.apps = apps
        self.dead = set()
        self.late = set()
        self.stalled, self.goes_on = set(), Event()
        self.errors = {}
        self.sent = []
        self.bytes = []
        self._waiting = {}
        self._one_at_a_time = Lock()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError("it sleeps for three seconds at a time")

    def get_node_ids(self):
        return [node for node in self.apps if node not in self.dead]

    def get_nodes(self):
        return [NodeInfo(node_id=node, name=f"node-{node}") for node in self.get_node_ids()]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            self._waiting[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        found = []
        if self.stalled & {self._waiting[each].metadata.dst_node_id for each in message_ids if each in self._waiting}:
            self.goes_on.wait(60)
            return found
        with self._one_at_a_time:
            for number in reversed(list(message_ids)):  # the last is the fastest
                message = self._waiting.get(number)
                if message is not None and message.metadata.dst_node_id not in self.dead | self.late:
                    found.append(self._reply(self._waiting.pop(number)))
        return found

    def _reply(self, message):
        node = message.metadata.dst_node_id
        if node in self.errors:
            return Message(Error(self.errors[node], "as told"), reply_to=message)
        arrived = Message(through_flower(message.content), metadata=message.metadata)
        try:
            reply = self.apps[node](arrived, Context(1, node, {}, RecordDict(), {}))
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        self.bytes.append(recorddict_to_proto(reply.content).SerializeToString())
        return Message(through_flower(reply.content), reply_to=message)
