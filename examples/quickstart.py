"""The schedule of FedCompass's Figure 1, without training anything.

Five clients at 10, 5, 4, 2.5 and 2 local steps per minute; Q_min = 20, Q_max = 100. The server
measures each client with 20 steps and then gives each a number of steps such that a group of them
arrives together. From 22:00 on all five arrive together.

    python examples/quickstart.py
"""

import offbeat as ob

SECONDS_PER_STEP = [6.0, 12.0, 15.0, 24.0, 30.0]


def main() -> None:
    """Simulate 33 virtual minutes and print who got how many steps, and when."""
    run = ob.simulate(
        ob.fedcompass(q_min=20, q_max=100),
        world=ob.World(SECONDS_PER_STEP),
        until=ob.Until(seconds=33 * 60),
    )
    for entry in run.journal:
        minutes, seconds = divmod(round(entry["t"]), 60)
        when = f"{minutes:02d}:{seconds:02d}"
        if entry["name"] == "train":
            group = entry.get("group", "-")
            print(f"{when}  client {entry['client'] + 1} trains {entry['steps']:3d} steps, group {group}")
        elif entry["name"] == "aggregate":
            clients = [client + 1 for client in entry["clients"]]
            print(f"{when}  version {entry['version']} from clients {clients}")
    print(run.stop_reason)


if __name__ == "__main__":
    main()
