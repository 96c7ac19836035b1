from offbeat.flower.client import client_app as client_app
from offbeat.flower.client_app_learner import from_flower as from_flower
from offbeat.flower.server import serve as serve, server_app as server_app
from offbeat.flower.server_loop import Polling as Polling
