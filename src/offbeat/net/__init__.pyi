from offbeat.net.client.helping import help_run as help_run
from offbeat.net.client.join import join as join
from offbeat.net.client.policy import SitePolicy as SitePolicy
from offbeat.net.server.options import ServerOptions as ServerOptions
from offbeat.net.server.serve import serve as serve
