from offbeat.net.auth.credentials import (
    ServerCredentials as ServerCredentials,
    SiteCredentials as SiteCredentials,
)
from offbeat.net.auth.tokens import DASHBOARD as DASHBOARD, Tokens as Tokens, make_token as make_token
from offbeat.net.secure.helping import help_run as help_run
from offbeat.net.client.connector import connector as connector
from offbeat.net.client.kit_connector import kit_connector as kit_connector
from offbeat.net.client.join import join as join
from offbeat.net.client.policy import SitePolicy as SitePolicy
from offbeat.net.grpc.client import connect as connect
from offbeat.net.threads import in_thread as in_thread
from offbeat.net.grpc.server import listen as listen
from offbeat.net.monitor.http import (
    MonitorAddress as MonitorAddress,
    Watched as Watched,
    dashboard as dashboard,
)
from offbeat.net.monitor.snapshot import Snapshot as Snapshot
from offbeat.net.server.server_learner import server_learner as server_learner
from offbeat.net.server.server_options import ServerOptions as ServerOptions
from offbeat.net.server.serve import RunServer as RunServer, serve as serve
from offbeat.net.wire.limits import Limits as Limits
from offbeat.secure.unmasking import UnmaskingTimes as UnmaskingTimes
