"""Reports on runs: a comparison table, learning curves, client timelines, an interactive page, figures.

Everything takes run records (`RunRecord`) and groups them by label; the runs of a label are its seeds.

- `group_by_label` says which runs are seeds of one experiment, and gives each group a label of its own.
- `make_table` compares labels as FedCompass's Table 1 does, with their paired differences from a baseline;
  `to_rich`, `to_text`, `to_markdown`, `to_latex` and `to_csv` render it, `write_table` writes a file.
- `make_curves` gives accuracy or loss against time, versions or traffic.
- `client_table`, `each_client` and `clients_csv` give what clients have found on what they hold out,
  `client_values` how it is distributed.
- `make_timeline` gives what each client of one run did when.
- `staleness_histograms` and `participation` give how stale updates were and who took part, from the
  totals that `read_activity` takes from a journal.
- `write_html` writes one self-contained interactive page, `write_figures` the static figures.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)
