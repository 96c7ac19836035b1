from offbeat.report.activity import Activity as Activity, read_activity as read_activity
from offbeat.report.clients import (
    ClientTable as ClientTable,
    ClientValues as ClientValues,
    client_table as client_table,
    client_values as client_values,
    clients_csv as clients_csv,
    each_client as each_client,
)
from offbeat.report.curves import Curve as Curve, make_curves as make_curves
from offbeat.report.distributions import (
    Participation as Participation,
    StalenessHistogram as StalenessHistogram,
    participation as participation,
    staleness_histograms as staleness_histograms,
)
from offbeat.report.html import write_html as write_html
from offbeat.report.labels import (
    LabelledRuns as LabelledRuns,
    Label as Label,
    group_by_label as group_by_label,
)
from offbeat.report.records import group_runs as group_runs
from offbeat.report.render import to_rich as to_rich, to_text as to_text
from offbeat.report.static import write_figures as write_figures
from offbeat.report.seed_statistics import (
    Difference as Difference,
    Stat as Stat,
    paired_difference as paired_difference,
)
from offbeat.report.table import (
    Table as Table,
    TableRow as TableRow,
    make_table as make_table,
    read_activities as read_activities,
)
from offbeat.report.table_files import (
    to_csv as to_csv,
    to_latex as to_latex,
    to_markdown as to_markdown,
    write_table as write_table,
)
from offbeat.report.timeline import (
    Aggregation as Aggregation,
    Timeline as Timeline,
    make_timeline as make_timeline,
)
