// What Grafana's own types allow in the JSON of a board: *the types that Grafana publishes → Board*.
//
// In JSON an enum is its value, so `Json` turns each enum into the literals of its members. The published types leave
// open what a panel holds. `PanelOf` closes that for each kind of panel that we use: options, custom field
// configuration and queries. A board is compared as a literal, so a key that Grafana does not know is an error.
import type { AnnotationQuery, Dashboard, DataQuery, FieldConfig, GraphFieldConfig, Panel, RowPanel, VariableModel } from '@grafana/schema';
import type * as BarGauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as Heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as Stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as TimeSeries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Json<T> = unknown extends T ? T
  : T extends string ? `${T}`
  : T extends number ? (`${T}` extends `${infer N extends number}` ? N : T)
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : T;

interface PrometheusQuery extends DataQuery {
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'heatmap' | 'table';
  instant?: boolean;
  range?: boolean;
  exemplar?: boolean;
}
type PanelOf<Type extends string, Options, Custom> = Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: Type;
  options: Partial<Options>;
  fieldConfig: { defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> }; overrides: [] };
  targets: PrometheusQuery[];
};
type AnyPanel =
  | PanelOf<'stat', Stat.Options, never>
  | PanelOf<'bargauge', BarGauge.Options, never>
  | PanelOf<'timeseries', TimeSeries.Options, GraphFieldConfig>
  | PanelOf<'heatmap', Heatmap.Options, Heatmap.FieldConfig>;

// What each data source adds of its own: the published type of an annotation and of a variable leaves it open.
interface PrometheusAnnotation extends AnnotationQuery<PrometheusQuery> {
  expr: string;
  step?: string;
  tagKeys?: string;
  titleFormat?: string;
}
interface QueryVariable extends VariableModel {
  definition?: string;
}

export type Board = Json<
  Omit<Dashboard, 'annotations' | 'panels' | 'templating'> & {
    annotations: { list?: PrometheusAnnotation[] };
    panels: (AnyPanel | RowPanel)[];
    templating: { list: QueryVariable[] };
  }
>;
